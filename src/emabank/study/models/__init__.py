"""Networks of the study: plain modules with `features(x)`, what the last layer sees. This file imports no torch."""
