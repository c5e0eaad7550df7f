"""The history: tables, one writer, read-only readers, migrations."""
