"""Where native code comes from: an index that publishes wheels, or a build from source."""
