"""The paper's tables and figures as named studies, at three scales, and what carries them out."""
