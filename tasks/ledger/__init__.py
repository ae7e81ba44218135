"""The job ledger: its port, its forms, and the scripts that move a job."""
