"""The maintainer's driver of padfree-flash2: plan, build, check, publish, serve and demonstrate the bundle."""
