"""What the demo shows: its record, its table, its picture and its page."""
