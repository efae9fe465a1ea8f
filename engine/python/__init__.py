"""The engine as Python users see it: whatever form their data have, and results that are looked at."""
