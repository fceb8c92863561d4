"""What tests share: fleets, clusters, builders of records, servers."""
