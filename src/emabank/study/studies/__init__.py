"""The paper's tables and figures as named studies, at three scales, and the scheduler that runs them."""
