# The official way to build what `python -m bundle build` builds: kernel-builder, in its own toolchain, from the network.
# `nix build .#redistributable.<variant>` builds one variant; docs/releasing.md says how flake.lock comes to be.
{
  description = "padfree-flash2: attention and convolution kernels for padding-free training";

  inputs.kernel-builder.url = "github:huggingface/kernels/v0.17.2";

  outputs =
    { self, kernel-builder }:
    kernel-builder.lib.genKernelFlakeOutputs {
      inherit self;
      path = ./.;
    };
}
