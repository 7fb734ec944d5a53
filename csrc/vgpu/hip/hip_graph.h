// Graphs: work that was recorded, by calls or from streams under capture, to be run as a whole.
//
// A graph's nodes run one after the other, in an order that depends on nothing but the graph: of
// those that are ready, the one that was added first.
#pragma once

#include <span>
#include <variant>

#include "vgpu/hip/hip_internal.h"

namespace vgpu {

struct Graph;

// Memory of hipMallocAsync under capture: it has its address at once, and lives with the graph.
struct GraphBlock {
  void* base = nullptr;
  u64 id = 0;  // of the allocation, so that nobody else's at this address is freed
  GraphBlock(void* base, u64 id) : base(base), id(id) {}
  GraphBlock(const GraphBlock&) = delete;
  GraphBlock& operator=(const GraphBlock&) = delete;
  ~GraphBlock();
};

struct EmptyWork {};
struct CopyWork {
  hipMemcpy3DParms params;
};
struct FillWork {
  hipMemsetParams params;
};
struct HostWork {
  hipHostNodeParams params;
};
struct ChildWork {
  std::shared_ptr<Graph> graph;  // the node's own
};
struct RecordWork {
  hipEvent_t event;
};
struct WaitWork {
  hipEvent_t event;
};
struct AllocWork {
  std::shared_ptr<GraphBlock> block;
};
struct FreeWork {
  void* base;
};
using Work = std::variant<EmptyWork, KernelWork, CopyWork, FillWork, HostWork, ChildWork,
                          RecordWork, WaitWork, AllocWork, FreeWork>;

hipGraphNodeType type_of(const Work& work);
hipError_t run_work(const Work& work);
CopyWork copy_work(void* to, const void* from, size_t size, hipMemcpyKind kind);
FillWork fill_work(void* to, size_t pitch, unsigned value, unsigned element, size_t width,
                   size_t height);

struct Node {
  Graph* graph = nullptr;
  Work work;
  u64 id = 0, origin = 0;  // its own, never reused; the id of the node that it is a clone of
  bool enabled = true;
  std::vector<Node*> needs, feeds;   // the edges to it and from it
  std::vector<void*> kernel_params;  // what hipGraphKernelNodeGetParams points to
};

struct Graph {
  std::vector<std::shared_ptr<Node>> nodes;
  bool is_part = false;  // of a node or of an executable graph, which destroys it

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  Node* add(Work work, std::span<Node* const> needs);
  void remove(Node* node);
  std::shared_ptr<Graph> clone() const;  // with the graphs of child nodes
  Node* clone_of(u64 id) const;          // the node whose origin that is, or null
  // All nodes, each after those that it needs; false where they form a circle.
  bool order(std::vector<Node*>& nodes) const;
};

bool depends_on(const Node* node, const Node* on);  // or is the same
bool add_edge(Node* from, Node* to);                // false: it is there
bool remove_edge(Node* from, Node* to);

struct GraphExec {
  std::shared_ptr<Graph> graph;
  std::vector<Node*> plan;  // in order, child graphs' nodes in their place
  unsigned long long flags = 0;
  bool make_plan();  // false: a circle
  hipError_t run() const;
};

// HIP's calls on graphs, and what captures record, take turns.
std::recursive_mutex& graph_mutex();
HandleTable<Graph>& graphs();
HandleTable<Node>& nodes();
HandleTable<GraphExec>& execs();

// Null after fail().
std::shared_ptr<Graph> graph_or_fail(hipGraph_t handle);
std::shared_ptr<Node> node_or_fail(hipGraphNode_t handle);
std::shared_ptr<GraphExec> exec_or_fail(hipGraphExec_t handle);

// The nodes of handles, which must be different ones of `graph`.
hipError_t read_nodes(const Graph& graph, const hipGraphNode_t* handles, size_t count,
                      std::vector<Node*>& to);

inline hipGraphNode_t handle_of(Node* node) { return reinterpret_cast<hipGraphNode_t>(node); }

}  // namespace vgpu
