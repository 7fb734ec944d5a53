"""What tests of the virtual GPU share: assembly, kernels, and models of instructions in numpy."""
