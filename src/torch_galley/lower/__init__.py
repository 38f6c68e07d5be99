"""XlaCluster -> Lowered: StableHLO and a map of its arguments."""
