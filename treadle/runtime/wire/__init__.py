"""What streams of servers and of checkpoints share: who may connect, frames with sums, and memory that is there."""
