"""Messages to users: errors with a remedy, notes, missing packages, settings that check themselves, names that are gone."""
