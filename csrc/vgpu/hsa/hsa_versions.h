/* The symbol version of ROCm's library. Read by the linker as a version script, and included by
   absent.cpp so that the library is linked again when it changes; hence the line that is a comment
   to one of them.
   clang-format off */
#if 0
ROCR_1 { global: hsa_*; rfops_vgpu_*; local: *; };
#endif
