"""The job ledger: its interface, its two implementations, and the Lua scripts that change a job."""
