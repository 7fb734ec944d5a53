// Lists all opcode tables; each is defined in the file that executes its opcodes.
#include <iterator>

#include "vgpu/isa/program.h"

namespace vgpu {

extern const OpTable kSop1Table, kSop2Table, kSopcTable, kSopkTable, kSoppTable;  // ops_salu.cpp
extern const OpTable kSmemTable;                                                  // ops_smem.cpp
extern const OpTable kVop1Table;                                                  // ops_vop1.cpp
extern const OpTable kVop2Table;                                                  // ops_vop2.cpp
extern const OpTable kVopcTable;                                                  // ops_vopc.cpp
extern const OpTable kVop3Table;                                                  // ops_vop3.cpp
extern const OpTable kVop3pTable;                                                 // ops_vop3p.cpp
extern const OpTable kConvertVop1Table, kConvertVop3Table;                        // ops_convert.cpp
extern const OpTable kMfmaTable, kMfmaScaleTable;                                 // ops_mfma.cpp
extern const OpTable kDsTable;                                                    // ops_ds.cpp
extern const OpTable kFlatTable, kGlobalTable, kScratchTable;                     // ops_flat.cpp
extern const OpTable kMubufTable, kMtbufTable;                                    // ops_buffer.cpp

OpTables all_tables() {
  static const OpTable* const tables[] = {
      &kSop1Table,        &kSop2Table,   &kSopcTable,      &kSopkTable,  &kSoppTable,
      &kSmemTable,        &kVop1Table,   &kVop2Table,      &kVopcTable,  &kVop3Table,
      &kVop3pTable,       &kMfmaTable,   &kMfmaScaleTable, &kDsTable,    &kFlatTable,
      &kConvertVop1Table, &kGlobalTable, &kScratchTable,   &kMubufTable, &kMtbufTable,
      &kConvertVop3Table};
  return {tables, std::size(tables)};
}

}  // namespace vgpu
