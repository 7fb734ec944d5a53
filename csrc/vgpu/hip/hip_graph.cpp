#include "vgpu/hip/hip_graph.h"

#include <algorithm>
#include <atomic>
#include <queue>
#include <unordered_set>

#include "vgpu/hip/hip_capture.h"
#include "vgpu/machine/allocations.h"

namespace vgpu {
namespace {

template <class T>
bool erase_one(std::vector<T>& list, const T& value) {
  const auto it = std::find(list.begin(), list.end(), value);
  if (it == list.end()) return false;
  list.erase(it);
  return true;
}

template <class T, class Handle>
std::shared_ptr<T> live_or_fail(const HandleTable<T>& table, Handle handle, const char* type) {
  auto object = table.lookup(handle);
  if (!object) fail(hipErrorInvalidValue, std::string("unknown or destroyed ") + type);
  return object;
}

// Executes one node's work, by type. Stream waits need no action, because replay is in order;
// memory of allocation nodes exists as long as the graph.
struct Runner {
  hipError_t operator()(const KernelWork& work) const { return run_kernel(work); }
  hipError_t operator()(const CopyWork& work) const { return copy_volume(work.params); }
  hipError_t operator()(const FillWork& work) const { return fill_plane(work.params); }
  hipError_t operator()(const HostWork& work) const {
    work.params.fn(work.params.userData);
    return hipSuccess;
  }
  hipError_t operator()(const RecordWork& work) const { return record_event(work.event); }
  hipError_t operator()(const auto&) const { return hipSuccess; }
};

bool append_plan(const Graph& graph, std::vector<Node*>& plan) {
  std::vector<Node*> ordered;
  if (!graph.order(ordered)) return false;
  for (Node* node : ordered) {
    const auto* child = std::get_if<ChildWork>(&node->work);
    if (!child) {
      plan.push_back(node);
    } else if (!append_plan(*child->graph, plan)) {
      return false;
    }
  }
  return true;
}

}  // namespace

GraphBlock::~GraphBlock() {
  const auto block = Allocations::instance().find(reinterpret_cast<u64>(base));
  if (block && block->id == id) Allocations::instance().release(base);
}

hipGraphNodeType type_of(const Work& work) {
  static constexpr hipGraphNodeType kTypes[] = {
      hipGraphNodeTypeEmpty,       hipGraphNodeTypeKernel,    hipGraphNodeTypeMemcpy,
      hipGraphNodeTypeMemset,      hipGraphNodeTypeHost,      hipGraphNodeTypeGraph,
      hipGraphNodeTypeEventRecord, hipGraphNodeTypeWaitEvent, hipGraphNodeTypeMemAlloc,
      hipGraphNodeTypeMemFree};
  static_assert(std::size(kTypes) == std::variant_size_v<Work>);
  return kTypes[work.index()];
}

hipError_t run_work(const Work& work) { return std::visit(Runner{}, work); }

CopyWork copy_work(void* dst, const void* src, size_t size, hipMemcpyKind kind) {
  return {{.srcPtr = {const_cast<void*>(src), size, size, 1},
           .dstPtr = {dst, size, size, 1},
           .extent = {size, 1, 1},
           .kind = kind}};
}

FillWork fill_work(void* dst, size_t pitch, unsigned value, unsigned element, size_t width,
                   size_t height) {
  return {{dst, element, height, pitch, value, width}};
}

// ------------------------------------------------------------------------------ structure

std::recursive_mutex& graph_mutex() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

HandleTable<Graph>& graphs() { return handle_table<Graph>(); }
HandleTable<Node>& nodes() { return handle_table<Node>(); }
HandleTable<GraphExec>& execs() { return handle_table<GraphExec>(); }

std::shared_ptr<Graph> graph_or_fail(hipGraph_t handle) {
  return live_or_fail(graphs(), handle, "hipGraph_t");
}

std::shared_ptr<Node> node_or_fail(hipGraphNode_t handle) {
  return live_or_fail(nodes(), handle, "hipGraphNode_t");
}

std::shared_ptr<GraphExec> exec_or_fail(hipGraphExec_t handle) {
  return live_or_fail(execs(), handle, "hipGraphExec_t");
}

hipError_t read_nodes(const Graph& graph, const hipGraphNode_t* handles, size_t count,
                      std::vector<Node*>& nodes_out) {
  if (count && !handles) return fail(hipErrorInvalidValue, "graph: the list of nodes is null");
  for (size_t i = 0; i < count; ++i) {
    const auto node = nodes().lookup(handles[i]);
    if (!node || node->graph != &graph || std::ranges::count(nodes_out, node.get())) {
      return fail(hipErrorInvalidValue, "graph: dependency " + std::to_string(i) +
                                            " is named twice or is no node of this graph");
    }
    nodes_out.push_back(node.get());
  }
  return hipSuccess;
}

bool add_edge(Node* source, Node* target) {
  if (std::ranges::count(target->needs, source)) return false;
  target->needs.push_back(source);
  source->feeds.push_back(target);
  return true;
}

bool remove_edge(Node* source, Node* target) {
  return erase_one(target->needs, source) && erase_one(source->feeds, target);
}

bool depends_on(const Node* node, const Node* ancestor) {
  std::vector<const Node*> open{node};
  std::unordered_set<const Node*> visited{node};
  while (!open.empty()) {
    const Node* current = open.back();
    open.pop_back();
    if (current == ancestor) return true;
    for (const Node* need : current->needs) {
      if (visited.insert(need).second) open.push_back(need);
    }
  }
  return false;
}

Graph::~Graph() {
  for (const auto& node : nodes) {
    vgpu::nodes().remove(node.get());
    if (const auto* child = std::get_if<ChildWork>(&node->work)) {
      graphs().remove(child->graph.get());
    }
  }
}

Node* Graph::add(Work work, std::span<Node* const> needs) {
  static std::atomic<u64> next_id{1};
  auto node = std::make_shared<Node>();
  node->graph = this;
  node->work = std::move(work);
  node->id = node->origin = next_id++;
  if (auto* child = std::get_if<ChildWork>(&node->work)) {
    child->graph->is_owned = true;
    graphs().add(child->graph);  // returned by hipGraphChildGraphNodeGetGraph
  }
  nodes.push_back(node);
  for (Node* need : needs) add_edge(need, node.get());
  return vgpu::nodes().add(std::move(node));
}

void Graph::remove(Node* node) {
  for (Node* need : std::vector(node->needs)) remove_edge(need, node);
  for (Node* fed : std::vector(node->feeds)) remove_edge(node, fed);
  forget_node(node);
  if (const auto* child = std::get_if<ChildWork>(&node->work)) graphs().remove(child->graph.get());
  vgpu::nodes().remove(node);
  std::erase_if(nodes, [node](const auto& candidate) { return candidate.get() == node; });
}

std::shared_ptr<Graph> Graph::clone() const {
  auto copy = std::make_shared<Graph>();
  std::unordered_map<const Node*, Node*> twins;
  for (const auto& node : nodes) {
    Work work = node->work;
    if (auto* child = std::get_if<ChildWork>(&work)) child->graph = child->graph->clone();
    Node* twin = copy->add(std::move(work), {});
    twin->origin = node->id;
    twin->enabled = node->enabled;
    twins[node.get()] = twin;
  }
  for (const auto& node : nodes) {
    for (const Node* need : node->needs) add_edge(twins[need], twins[node.get()]);
  }
  return copy;
}

Node* Graph::clone_of(u64 id) const {
  for (const auto& node : nodes) {
    if (node->origin == id) return node.get();
    const auto* child = std::get_if<ChildWork>(&node->work);
    if (!child) continue;
    if (Node* twin = child->graph->clone_of(id)) return twin;
  }
  return nullptr;
}

bool Graph::order(std::vector<Node*>& ordered) const {
  const auto is_later = [](const Node* a, const Node* b) { return a->id > b->id; };
  std::priority_queue<Node*, std::vector<Node*>, decltype(is_later)> ready(is_later);
  std::unordered_map<const Node*, size_t> missing;
  for (const auto& node : nodes) {
    missing[node.get()] = node->needs.size();
    if (node->needs.empty()) ready.push(node.get());
  }
  while (!ready.empty()) {
    Node* node = ready.top();
    ready.pop();
    ordered.push_back(node);
    for (Node* fed : node->feeds) {
      if (!--missing[fed]) ready.push(fed);
    }
  }
  return ordered.size() == nodes.size();
}

bool GraphExec::make_plan() {
  plan.clear();
  return append_plan(*graph, plan);
}

hipError_t GraphExec::run() const {
  for (const Node* node : plan) {
    const hipError_t code = node->enabled ? run_work(node->work) : hipSuccess;
    if (code != hipSuccess) return code;
  }
  return hipSuccess;
}

}  // namespace vgpu
