"""The paper's nineteen claims, held against what was measured. Evidence in, verdicts out; no torch, no scipy."""
