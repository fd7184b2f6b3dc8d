// An op by float32 copies of its bfloat16 arguments.
#include "kernels/device/cpu/widened_op.h"

#include <array>
#include <cstdint>
#include <memory>

#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;

constexpr std::int64_t kFirst = 3, kSecond = 17;  // elements; neither fills 64 bytes as float32

TensorDesc plain(std::int64_t elements, DType type) {
  return {Shape{elements}, type, plain_cpu_layout(Shape{elements}, type)};
}

// second = 2 * first for the elements that both have, 5 for the others; keeps its arguments.
class Doubled final : public HostOp {
 public:
  explicit Doubled(std::vector<void*>& seen) : seen_(seen) {}
  std::size_t workspace_bytes() const override { return 100; }
  void execute(std::span<void* const> args, void* workspace) override {
    seen_.assign(args.begin(), args.end());
    seen_.push_back(workspace);
    const auto* const from = static_cast<const float*>(args[0]);
    auto* const to = static_cast<float*>(args[2]);
    for (std::int64_t i = 0; i < kSecond; ++i) to[i] = i < kFirst ? 2 * from[i] : 5;
  }

 private:
  std::vector<void*>& seen_;
};

}  // namespace

TEST_CASE("a widened op computes on float32 copies, each at a multiple of 64 bytes of the workspace") {
  const TensorDesc first = plain(kFirst, DType::bf16), second = plain(kSecond, DType::bf16);
  std::vector<void*> seen;
  WidenedOp op(std::make_unique<Doubled>(seen), {{first, {0}}, {second, {2}, true}}, {first, second}, 1);
  CHECK(op.workspace_bytes() == 64 + 128 + 100);
  CHECK(op.implementation() == "widened: plain");
  CHECK(op.is_fallback());
  REQUIRE(op.tensors().size() == 2);
  CHECK(op.tensors()[1].shape == second.shape);

  std::vector<std::uint16_t> in{0x3f80, 0x4000, 0xbf00}, out(kSecond, 0xffff);  // 1, 2, -0.5
  float untouched = 7;
  void* const args[] = {in.data(), &untouched, out.data()};
  alignas(64) std::array<char, 64 + 128 + 100> workspace{};
  op.execute(args, workspace.data());
  REQUIRE(seen.size() == 4);
  CHECK(seen[0] == workspace.data());
  CHECK(seen[1] == &untouched);
  CHECK(seen[2] == workspace.data() + 64);
  CHECK(seen[3] == workspace.data() + 64 + 128);
  CHECK(in == std::vector<std::uint16_t>{0x3f80, 0x4000, 0xbf00});
  std::vector<std::uint16_t> expected(kSecond, 0x40a0);  // 5
  expected[0] = 0x4000, expected[1] = 0x4080, expected[2] = 0xbf80;
  CHECK(out == expected);
}
