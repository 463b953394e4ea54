//! Looks inside a running job.
