"""Ways to turn a staged tree into a build variant: CMake/ninja here, or the official Nix build."""
