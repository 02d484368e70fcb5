"""What do the benches compare with? One module a peer; importing it needs the peer (extra `peers`)."""
