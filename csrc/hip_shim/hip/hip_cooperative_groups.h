// HIP's cooperative groups for a machine without ROCm: thread_block, tiles of a wave,
// coalesced_group and grid_group. The names and meanings are those of HIP's documentation.
//
// A group within a wave is a mask of lanes: its threads are ranked by their lane, and it needs no
// barrier, as the lanes of a wave run together; sync() keeps the order of memory accesses. Tiles
// larger than a wave and multi_grid_group are not there. reduce and scans neither, as in HIP.
#pragma once

#include <hip/hip_runtime.h>

#if defined(__HIP_DEVICE_COMPILE__)
extern "C" __device__ void __ockl_grid_sync(void);
#endif

namespace cooperative_groups {
namespace details {

constexpr unsigned kWaveSize = 64;

__device__ inline unsigned lane() { return __lane_id(); }

// Lanes below one's own in a mask.
__device__ inline unsigned rank_in(unsigned long long mask) {
  return static_cast<unsigned>(__popcll(mask & ((1ull << lane()) - 1)));
}

// The lane of the rank-th bit of a mask; one's own where there are not so many.
__device__ inline int lane_of(unsigned long long mask, unsigned rank) {
  for (; mask != 0; mask &= mask - 1, --rank) {
    if (rank == 0) return __ffsll(mask) - 1;
  }
  return static_cast<int>(lane());
}

__device__ inline void wave_sync() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

}  // namespace details

enum class group_kind : unsigned char { none, block, grid, lanes };

// A group of any kind: what functions take by value or reference.
class thread_group {
 public:
  __device__ unsigned size() const { return size_; }
  __device__ unsigned num_threads() const { return size_; }
  __device__ bool is_valid() const { return kind_ != group_kind::none; }
  __device__ unsigned thread_rank() const;
  __device__ void sync() const;

 protected:
  __device__ thread_group(group_kind kind, unsigned size, unsigned long long mask)
      : mask_(mask), size_(size), kind_(kind) {}

  unsigned long long mask_;  // lanes, of a group within a wave

 private:
  unsigned size_;
  group_kind kind_;
};

class thread_block : public thread_group {
 public:
  __device__ static dim3 group_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
  __device__ static dim3 thread_index() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
  __device__ static dim3 group_dim() { return dim_threads(); }
  __device__ static dim3 dim_threads() { return {blockDim.x, blockDim.y, blockDim.z}; }
  __device__ static unsigned thread_rank() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  }
  __device__ static void sync() { __syncthreads(); }

 private:
  friend __device__ thread_block this_thread_block();
  __device__ thread_block()
      : thread_group(group_kind::block, blockDim.x * blockDim.y * blockDim.z, 0) {}
};
__device__ inline thread_block this_thread_block() { return {}; }

// All blocks of a launch by hipLaunchCooperativeKernel.
class grid_group : public thread_group {
 public:
  __device__ unsigned long long size() const { return num_threads(); }
  __device__ static unsigned long long num_threads() {
    return num_blocks() * (blockDim.x * blockDim.y * blockDim.z);
  }
  __device__ static unsigned long long num_blocks() {
    return 1ull * gridDim.x * gridDim.y * gridDim.z;
  }
  __device__ static unsigned long long block_rank() {
    return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  }
  __device__ static unsigned long long thread_rank() {
    return block_rank() * (blockDim.x * blockDim.y * blockDim.z) + thread_block::thread_rank();
  }
  __device__ static dim3 group_dim() { return {gridDim.x, gridDim.y, gridDim.z}; }
  __device__ static void sync() {
#if defined(__HIP_DEVICE_COMPILE__)
    __ockl_grid_sync();
#endif
  }

 private:
  friend __device__ grid_group this_grid();
  __device__ grid_group() : thread_group(group_kind::grid, 0, 0) {}
};
__device__ inline grid_group this_grid() { return {}; }

template <unsigned kSize, class Parent = void>
class thread_block_tile;

// Some lanes of a wave.
class coalesced_group : public thread_group {
 public:
  __device__ unsigned thread_rank() const { return details::rank_in(mask_); }
  __device__ static void sync() { details::wave_sync(); }
  template <class T>
  __device__ T shfl(T value, int src_rank) const {
    const unsigned rank = static_cast<unsigned>(src_rank) % size();
    return __shfl(value, details::lane_of(mask_, rank), details::kWaveSize);
  }
  template <class T>
  __device__ T shfl_up(T value, unsigned delta) const {
    const unsigned rank = thread_rank();
    return shfl(value, static_cast<int>(rank < delta ? rank : rank - delta));
  }
  template <class T>
  __device__ T shfl_down(T value, unsigned delta) const {
    const unsigned rank = thread_rank();
    return shfl(value, static_cast<int>(rank + delta < size() ? rank + delta : rank));
  }
  // Ballots are by rank: bit r is of the group's r-th thread.
  __device__ unsigned long long ballot(int predicate) const {
    unsigned long long mask = mask_, lanes = __ballot(predicate) & mask_, found = 0;
    for (unsigned rank = 0; mask != 0; mask &= mask - 1, ++rank) {
      found |= static_cast<unsigned long long>((lanes & mask & -mask) != 0) << rank;
    }
    return found;
  }
  __device__ int any(int predicate) const { return (__ballot(predicate) & mask_) != 0; }
  __device__ int all(int predicate) const { return (__ballot(predicate) & mask_) == mask_; }
  __device__ static unsigned meta_group_rank() { return 0; }
  __device__ static unsigned meta_group_size() { return 1; }

 protected:
  friend __device__ coalesced_group coalesced_threads();
  friend __device__ coalesced_group binary_partition(const coalesced_group&, bool);
  template <unsigned, class>
  friend class thread_block_tile;
  template <unsigned kSize, class Parent>
  friend __device__ coalesced_group binary_partition(const thread_block_tile<kSize, Parent>&, bool);
  friend __device__ thread_group tiled_partition(const thread_group&, unsigned);
  __device__ explicit coalesced_group(unsigned long long mask)
      : thread_group(group_kind::lanes, static_cast<unsigned>(__popcll(mask)), mask) {}
};
__device__ inline coalesced_group coalesced_threads() { return coalesced_group(__ballot(1)); }

// kSize neighbouring lanes of a wave, a power of two.
template <unsigned kSize, class Parent>
class thread_block_tile : public thread_group {
  static_assert(kSize != 0 && (kSize & (kSize - 1)) == 0 && kSize <= details::kWaveSize,
                "a tile is 1 to 64 threads of a wave, a power of two");
  static constexpr int kWidth = static_cast<int>(kSize);

 public:
  // A tile whose parent is not named takes one of any.
  template <class Other>
  __device__ thread_block_tile(const thread_block_tile<kSize, Other>& tile)
      : thread_group(tile),
        meta_rank_(tile.meta_group_rank()),
        meta_size_(tile.meta_group_size()) {}
  __device__ static constexpr unsigned size() { return kSize; }
  __device__ static constexpr unsigned num_threads() { return kSize; }
  __device__ static unsigned thread_rank() { return details::lane() % kSize; }
  __device__ unsigned meta_group_rank() const { return meta_rank_; }
  __device__ unsigned meta_group_size() const { return meta_size_; }
  __device__ static void sync() { details::wave_sync(); }
  template <class T>
  __device__ T shfl(T value, int src_rank) const {
    return __shfl(value, src_rank, kWidth);
  }
  template <class T>
  __device__ T shfl_up(T value, unsigned delta) const {
    return __shfl_up(value, delta, kWidth);
  }
  template <class T>
  __device__ T shfl_down(T value, unsigned delta) const {
    return __shfl_down(value, delta, kWidth);
  }
  template <class T>
  __device__ T shfl_xor(T value, unsigned lane_mask) const {
    return __shfl_xor(value, static_cast<int>(lane_mask), kWidth);
  }
  __device__ unsigned long long ballot(int predicate) const {
    return (__ballot(predicate) & mask_) >> (details::lane() / kSize * kSize);
  }
  __device__ int any(int predicate) const { return (__ballot(predicate) & mask_) != 0; }
  __device__ int all(int predicate) const { return (__ballot(predicate) & mask_) == active(); }

 private:
  template <unsigned kTile, class Group>
  friend __device__ thread_block_tile<kTile, Group> tiled_partition(const Group&);
  template <unsigned kTile, class Group>
  friend __device__ coalesced_group binary_partition(const thread_block_tile<kTile, Group>&, bool);

  __device__ thread_block_tile(unsigned rank, unsigned num_threads)
      : thread_group(group_kind::lanes, kSize, lanes()),
        meta_rank_(rank / kSize),
        meta_size_((num_threads + kSize - 1) / kSize) {}
  __device__ static unsigned long long lanes() {
    const unsigned long long low = kSize == 64 ? ~0ull : (1ull << kSize % 64) - 1;
    return low << (details::lane() / kSize * kSize);
  }
  // Of those a block's last wave may lack some.
  __device__ unsigned long long active() const { return __ballot(1) & mask_; }

  unsigned meta_rank_, meta_size_;
};

template <unsigned kSize, class Parent>
__device__ thread_block_tile<kSize, Parent> tiled_partition(const Parent& parent) {
  return {static_cast<unsigned>(parent.thread_rank()), static_cast<unsigned>(parent.size())};
}

// The same with a size that is known at run time only, a power of two of up to 64.
__device__ inline thread_group tiled_partition(const thread_group&, unsigned size) {
  const unsigned long long low = size >= details::kWaveSize ? ~0ull : (1ull << size) - 1;
  return coalesced_group(low << (details::lane() / size * size));
}

// Those of a group that have the same predicate.
__device__ inline coalesced_group binary_partition(const coalesced_group& group, bool predicate) {
  const unsigned long long lanes = __ballot(predicate);
  return coalesced_group((predicate ? lanes : ~lanes) & group.mask_);
}
template <unsigned kSize, class Parent>
__device__ coalesced_group binary_partition(const thread_block_tile<kSize, Parent>& group,
                                            bool predicate) {
  const unsigned long long lanes = __ballot(predicate);
  return coalesced_group((predicate ? lanes : ~lanes) & group.active());
}

__device__ inline unsigned thread_group::thread_rank() const {
  return kind_ == group_kind::block  ? thread_block::thread_rank()
         : kind_ == group_kind::grid ? static_cast<unsigned>(grid_group::thread_rank())
                                     : details::rank_in(mask_);
}
__device__ inline void thread_group::sync() const {
  if (kind_ == group_kind::block) return thread_block::sync();
  if (kind_ == group_kind::grid) return grid_group::sync();
  details::wave_sync();
}

template <class Group>
__device__ void sync(const Group& group) {
  group.sync();
}
template <class Group>
__device__ auto thread_rank(const Group& group) {
  return group.thread_rank();
}
template <class Group>
__device__ auto group_size(const Group& group) {
  return group.size();
}

}  // namespace cooperative_groups
