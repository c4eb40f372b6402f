"""Networks of the study: plain modules, each with `features(x)`, what its last layer sees."""
