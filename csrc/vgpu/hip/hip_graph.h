// Graphs: work recorded by calls or by stream capture, executed as a whole.
//
// The nodes of a graph run sequentially in an order that depends only on the graph: of the ready
// nodes, the one that was added first.
#pragma once

#include <span>
#include <variant>

#include "vgpu/hip/hip_internal.h"

namespace vgpu {

struct Graph;

// Memory of hipMallocAsync under capture: its address is fixed at capture, its lifetime is that of
// the graph.
struct GraphBlock {
  void* base = nullptr;
  u64 id = 0;  // allocation id: guards against freeing a later block at this address
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
  std::shared_ptr<Graph> graph;  // owned by the node
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
CopyWork copy_work(void* dst, const void* src, size_t size, hipMemcpyKind kind);
FillWork fill_work(void* dst, size_t pitch, unsigned value, unsigned element, size_t width,
                   size_t height);

struct Node {
  Graph* graph = nullptr;
  Work work;
  u64 id = 0, origin = 0;  // unique; id of the node that it was cloned from
  bool enabled = true;
  std::vector<Node*> needs, feeds;   // incoming and outgoing edges
  std::vector<void*> kernel_params;  // returned by hipGraphKernelNodeGetParams
};

struct Graph {
  std::vector<std::shared_ptr<Node>> nodes;
  bool is_owned = false;  // owned by a node or by an executable graph

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  Node* add(Work work, std::span<Node* const> needs);
  void remove(Node* node);
  std::shared_ptr<Graph> clone() const;  // including the graphs of child nodes
  Node* clone_of(u64 id) const;          // the node with this origin, or null
  // Returns all nodes in topological order; false if there is a cycle.
  bool order(std::vector<Node*>& nodes) const;
};

bool depends_on(const Node* node, const Node* ancestor);  // also true if they are equal
bool add_edge(Node* source, Node* target);                // false: the edge exists already
bool remove_edge(Node* source, Node* target);

struct GraphExec {
  std::shared_ptr<Graph> graph;
  std::vector<Node*> plan;  // topological order, child graphs inlined
  unsigned long long flags = 0;
  bool make_plan();  // false: there is a cycle
  hipError_t run() const;
};

// Serialises HIP's graph functions and recording by captures.
std::recursive_mutex& graph_mutex();
HandleTable<Graph>& graphs();
HandleTable<Node>& nodes();
HandleTable<GraphExec>& execs();

// Null after fail().
std::shared_ptr<Graph> graph_or_fail(hipGraph_t handle);
std::shared_ptr<Node> node_or_fail(hipGraphNode_t handle);
std::shared_ptr<GraphExec> exec_or_fail(hipGraphExec_t handle);

// Resolves handles, which must be distinct nodes of `graph`.
hipError_t read_nodes(const Graph& graph, const hipGraphNode_t* handles, size_t count,
                      std::vector<Node*>& nodes_out);

inline hipGraphNode_t handle_of(Node* node) { return reinterpret_cast<hipGraphNode_t>(node); }

}  // namespace vgpu
