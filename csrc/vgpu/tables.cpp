// The list of all opcode tables: one line a file of the instruction set.
#include "program.h"

namespace vgpu {

#define VGPU_TABLES(X)                                                                      \
  X(kSop1Table) X(kSop2Table) X(kSopcTable) X(kSopkTable) X(kSoppTable) X(kSmemTable)       \
  X(kVop1Table) X(kVop2Table) X(kVopcTable) X(kVop3Table) X(kVop3pTable)                    \
  X(kConvertVop1Table) X(kConvertVop3Table) X(kMfmaTable) X(kMfmaScaleTable)                \
  X(kDsTable) X(kFlatTable) X(kGlobalTable) X(kScratchTable) X(kMubufTable) X(kMtbufTable)

#define VGPU_DECLARE(table) extern const OpTable table;
VGPU_TABLES(VGPU_DECLARE)

#define VGPU_ADDRESS(table) &table,
OpTables all_tables() {
  static const OpTable* const tables[] = {VGPU_TABLES(VGPU_ADDRESS)};
  return {tables, static_cast<u32>(sizeof(tables) / sizeof(tables[0]))};
}

}  // namespace vgpu
