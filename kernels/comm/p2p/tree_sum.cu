#include "kernels/comm/p2p/tree_sum.h"

#include <type_traits>

#include "device_code.h"
#include "dp/error.h"
#include "kernels/comm/communicator.h"
#include "kernels/low_float.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, int Count>
struct Summands {
  const T* of[Count];
};

// Consecutive elements of one thread: 16 bytes. Used if the addresses are aligned.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T of[kSize];
};

// Type in which elements are added: float for bfloat16, otherwise T.
template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
template <typename T>
__device__ __forceinline__ SumOf<T> widened(T value) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return to_float(value);
  else
    return value;
}
template <typename T>
__device__ __forceinline__ T rounded(SumOf<T> sum) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return from_float<T>(sum);
  else
    return sum;
}

template <typename T>
struct SumPack {
  SumOf<T> of[Pack<T>::kSize];
};

template <int Begin, int End, typename T, int Count>
__device__ SumOf<T> tree(const Summands<T, Count>& summands, long long i) {
  if constexpr (End - Begin == 1) {
    return widened(summands.of[Begin][i]);
  } else {
    constexpr int middle = tree_split(Begin, End);
    return tree<Begin, middle>(summands, i) + tree<middle, End>(summands, i);
  }
}

template <int Begin, int End, typename T, int Count>
__device__ SumPack<T> tree_of_packs(const Summands<T, Count>& summands, long long pack) {
  if constexpr (End - Begin == 1) {
    const Pack<T> read = reinterpret_cast<const Pack<T>*>(summands.of[Begin])[pack];
    SumPack<T> sum;
    for (int i = 0; i < Pack<T>::kSize; ++i) sum.of[i] = widened(read.of[i]);
    return sum;
  } else {
    constexpr int middle = tree_split(Begin, End);
    SumPack<T> sum = tree_of_packs<Begin, middle>(summands, pack);
    const SumPack<T> right = tree_of_packs<middle, End>(summands, pack);
    for (int i = 0; i < Pack<T>::kSize; ++i) sum.of[i] += right.of[i];
    return sum;
  }
}

template <typename T, int Count>
__global__ void __launch_bounds__(kThreads)
    tree_sum_kernel(Summands<T, Count> summands, T* out, long long count, bool aligned) {
  const long long thread = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  const long long first = thread * Pack<T>::kSize;
  if (aligned && first + Pack<T>::kSize <= count) {
    const SumPack<T> sum = tree_of_packs<0, Count>(summands, thread);
    Pack<T> result;
    for (int i = 0; i < Pack<T>::kSize; ++i) result.of[i] = rounded<T>(sum.of[i]);
    reinterpret_cast<Pack<T>*>(out)[thread] = result;
    return;
  }
  for (long long i = first; i < first + Pack<T>::kSize && i < count; ++i)
    out[i] = rounded<T>(tree<0, Count>(summands, i));
}

template <typename T, int Count>
void enqueue(const void* const* pointers, void* out, std::int64_t count, cudaStream_t stream) {
  Summands<T, Count> summands{};
  auto bits = reinterpret_cast<std::uintptr_t>(out);
  for (int i = 0; i < Count; ++i) {
    summands.of[i] = static_cast<const T*>(pointers[i]);
    bits |= reinterpret_cast<std::uintptr_t>(pointers[i]);
  }
  launch({"tree_sum", dim3(blocks_for(count, kThreads * Pack<T>::kSize)), dim3(kThreads), stream},
         tree_sum_kernel<T, Count>, summands, static_cast<T*>(out), static_cast<long long>(count), bits % 16 == 0);
}

// Unrolled kernels exist only for common numbers of summands, to limit the number of
// kernels. Returns false for any other number.
template <typename T>
bool enqueue_usual(const std::vector<const void*>& summands, void* out, std::int64_t count, cudaStream_t stream) {
  const void* const* pointers = summands.data();
  switch (summands.size()) {
    case 1: enqueue<T, 1>(pointers, out, count, stream); return true;
    case 2: enqueue<T, 2>(pointers, out, count, stream); return true;
    case 3: enqueue<T, 3>(pointers, out, count, stream); return true;
    case 4: enqueue<T, 4>(pointers, out, count, stream); return true;
    case 5: enqueue<T, 5>(pointers, out, count, stream); return true;
    case 6: enqueue<T, 6>(pointers, out, count, stream); return true;
    case 7: enqueue<T, 7>(pointers, out, count, stream); return true;
    case 8: enqueue<T, 8>(pointers, out, count, stream); return true;
    case 16: enqueue<T, 16>(pointers, out, count, stream); return true;
    default: return false;
  }
}

// Any number of summands. A thread keeps partial sums of 1, 2, 4, ... summands and merges them like carries in
// a binary counter. At the end it adds the remaining ones from the right. The result is the tree of tree_split.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    long_tree_sum_kernel(Summands<T, kMostSummands> summands, int size, T* out, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  SumOf<T> partial[7];  // of 2^level summands; log2(kMostSummands) + 1 levels
  for (int next = 0; next < size; ++next) {
    SumOf<T> sum = widened(summands.of[next][i]);
    int level = 0;
    for (; next >> level & 1; ++level) sum = partial[level] + sum;
    partial[level] = sum;
  }
  SumOf<T> sum{};
  bool any = false;
  for (int level = 0; level < 7; ++level) {
    if (!(size >> level & 1)) continue;
    sum = any ? partial[level] + sum : partial[level];
    any = true;
  }
  out[i] = rounded<T>(sum);
}

template <typename T>
void enqueue_any(const std::vector<const void*>& summands, void* out, std::int64_t count, cudaStream_t stream) {
  if (enqueue_usual<T>(summands, out, count, stream)) return;
  if (summands.size() > kMostSummands)
    throw Error(ErrorCode::usage, "at most " + std::to_string(kMostSummands) + " summands are supported, not " +
                                      std::to_string(summands.size()));
  Summands<T, kMostSummands> all{};
  for (std::size_t i = 0; i < summands.size(); ++i) all.of[i] = static_cast<const T*>(summands[i]);
  launch({"long_tree_sum", dim3(blocks_for(count, kThreads)), dim3(kThreads), stream}, long_tree_sum_kernel<T>, all,
         static_cast<int>(summands.size()), static_cast<T*>(out), static_cast<long long>(count));
}

}  // namespace

void tree_sum(const std::vector<const void*>& summands, void* out, std::int64_t count, DType type,
              cudaStream_t stream) {
  if (count == 0) return;
  if (type == DType::f32) return enqueue_any<float>(summands, out, count, stream);
  if (type == DType::f64) return enqueue_any<double>(summands, out, count, stream);
  if (type == DType::bf16) return enqueue_any<BFloat16>(summands, out, count, stream);
  throw Error(ErrorCode::usage, std::string("sums support float32, float64 and bfloat16, not ") + to_string(type));
}

void load_tree_sums(int summands) {
  const KernelLoading loading;
  for (const DType type : {DType::f32, DType::f64, DType::bf16})
    tree_sum(std::vector<const void*>(static_cast<std::size_t>(summands)), nullptr, 1, type, nullptr);
}

}  // namespace dp::kernels::cuda
