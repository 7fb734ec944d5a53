/* The names of the symbol versions of ROCm's library. A program linked against that asks for them;
   ours answers to each without giving a symbol to any, and an unversioned symbol serves every
   version. Read by the linker as a version script, and included by hip_errors.cpp so that the
   library is linked again when it changes; hence the line that is a comment to one of them.
   clang-format off */
#if 0
hip_4.2 { };
hip_4.3 { };
hip_4.4 { };
hip_4.5 { };
hip_5.0 { };
hip_5.1 { };
hip_5.2 { };
hip_5.3 { };
hip_5.5 { };
hip_5.6 { };
hip_6.0 { };
hip_6.1 { };
hip_6.2 { };
hip_6.4 { };
hip_6.5 { };
hip_7.1 { };
hip_7.2 { };
#endif
