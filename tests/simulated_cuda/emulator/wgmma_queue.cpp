#include "simulated_cuda/emulator/wgmma_queue.h"

#include <cstring>

#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/emulator/tensor_core.h"

namespace dp::simt {
namespace {

constexpr unsigned kDepth = 16, kOwnLines = 16, kRowBytes = 128;

std::size_t field(std::uint64_t descriptor, int bit) { return (descriptor >> bit & 0x3fff) * 16; }

const char* in_shared(Block& block, std::size_t address) {
  return static_cast<char*>(block.shared().dynamic()) + (address - kSharedStart);
}

void announce(const WgmmaOrder& order, const WgmmaOperand& operand, Block& block) {
  for (unsigned i = 0; i < operand.rows(); ++i)
    detector->access(in_shared(block, operand.row(i)), kRowBytes, Access::read, order.warp * kWarp + i % kWarp,
                     nullptr);
}

bool a_in_registers(const WgmmaOrder& order) { return order.fragments_a[0] != nullptr; }

// The hardware may read at any time between issue and wait, so reads are announced at both.
void announce(const WgmmaOrder& order, Block& block) {
  if (detector == nullptr) return;
  if (!a_in_registers(order)) announce(order, order.a, block);
  announce(order, order.b, block);
}

void check_operand(const WgmmaOrder& order, const WgmmaOperand& operand, Block& block) {
  if (operand.descriptor >> 62 != 1 || (operand.descriptor >> 49 & 7) != 0)
    block.fail("the operand of wgmma at %s:%d has another layout than the emulated one", order.site.name(),
               order.site.line);
  const std::size_t in_row = field(operand.descriptor, 0) % kRowBytes;
  if (in_row % (operand.k_major ? 32 : kRowBytes) != 0)
    block.fail("the operand of wgmma at %s:%d begins inside a row", order.site.name(), order.site.line);
  for (unsigned i = 0; i < operand.rows(); ++i)
    if (!block.shared().inside_array(in_shared(block, operand.row(i)), kRowBytes))
      block.fail("wgmma at %s:%d reads outside the shared arrays", order.site.name(), order.site.line);
}

float value(const WgmmaOrder& order, const WgmmaOperand& operand, unsigned line, unsigned k, Block& block) {
  std::uint16_t bits;
  std::memcpy(&bits, in_shared(block, operand.value(line, k)), sizeof bits);
  return order.value_of(bits);
}

// Fragment i holds columns lane % 4 * 2 and the next one of row lane / 4 of an 8x8 matrix: upper left, lower left,
// upper right, lower right.
float fragment_value(const WgmmaOrder& order, unsigned line, unsigned k) {
  const unsigned lane = line % 8 * 4 + k % 8 / 2, pair = order.fragments_a[lane][k / 8 * 2 + line / 8];
  return order.value_of(static_cast<std::uint16_t>(k % 2 == 0 ? pair : pair >> 16));
}

void multiply(const WgmmaOrder& order, Block& block) {
  const unsigned first = order.warp % 4 * kOwnLines;
  MmaOperands m;
  m.smallest_exponent = order.smallest_exponent;
  for (unsigned line = 0; line < kOwnLines; ++line)
    for (unsigned k = 0; k < kDepth; ++k)
      m.a[line][k] =
          a_in_registers(order) ? fragment_value(order, line, k) : value(order, order.a, first + line, k, block);
  for (unsigned j = 0; j < order.b.lines / 8; ++j) {
    for (unsigned k = 0; k < kDepth; ++k)
      for (unsigned column = 0; column < 8; ++column) m.b[k][column] = value(order, order.b, j * 8 + column, k, block);
    const auto each_sum = [&](auto to) {
      for (unsigned lane = 0; lane < kWarp; ++lane)
        for (unsigned i = 0; i < 4; ++i) to(order.d[lane][j * 4 + i], m.d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
    };
    each_sum([](float sum, float& d) { d = sum; });
    multiply_and_add(m);
    each_sum([](float& sum, float d) { sum = d; });
  }
}

}  // namespace

std::size_t WgmmaOperand::row(unsigned i) const {
  const std::size_t next_lines = k_major ? 0 : i / 16 * field(descriptor, 16);
  const unsigned in_lines = k_major ? i : i % 16;
  return field(descriptor, 0) / kRowBytes * kRowBytes + next_lines + in_lines / 8 * field(descriptor, 32) +
         in_lines % 8 * kRowBytes;
}

std::size_t WgmmaOperand::value(unsigned line, unsigned k) const {
  const std::size_t in_row = field(descriptor, 0) % kRowBytes + 2 * (k_major ? k : line % 64);
  const std::size_t plain = row(k_major ? line : line / 64 * 16 + k) + in_row;
  return plain ^ (plain / kRowBytes % 8) << 4;
}

void WgmmaQueue::clear() {
  orders_.clear();
  groups_.clear();
  issued_.clear();
  fenced_ = false;
}

void WgmmaQueue::issue(const WgmmaOrder& order, Block& block) {
  if (!fenced_) block.fail("wgmma at %s:%d without a wgmma.fence before it", order.site.name(), order.site.line);
  if (!a_in_registers(order)) check_operand(order, order.a, block);
  check_operand(order, order.b, block);
  check_warpgroup(order, block);
  announce(order, block);
  orders_.push_back(order);
  // A warp's wgmmas run in order, so all after a late one are late, too.
  const bool after_late = orders_.size() > 1 && orders_[orders_.size() - 2].late;
  orders_.back().late = order.late || after_late;
  if (!orders_.back().late) multiply(order, block);
}

void WgmmaQueue::check_warpgroup(const WgmmaOrder& order, Block& block) {
  issued_.push_back({order.a.descriptor, order.b.descriptor});
  const unsigned first = order.warp / 4 * 4;
  for (unsigned warp = first; warp < first + 4; ++warp) {
    const auto& others = block.wgmma_queue(warp).issued_;
    if (others.size() >= issued_.size() && others[issued_.size() - 1] != issued_.back())
      block.fail("the warps of a warpgroup pass different operands to wgmma at %s:%d", order.site.name(),
                 order.site.line);
  }
}

void WgmmaQueue::commit() {
  groups_.push_back(orders_.size());
  fenced_ = false;
}

void WgmmaQueue::wait(std::size_t pending, Block& block) {
  if (groups_.size() <= pending) return;
  const std::size_t done = groups_[groups_.size() - 1 - pending];
  for (std::size_t i = 0; i < done; ++i) {
    announce(orders_[i], block);
    if (orders_[i].late) multiply(orders_[i], block);
  }
  orders_.erase(orders_.begin(), orders_.begin() + done);
  groups_.erase(groups_.begin(), groups_.end() - pending);
  for (std::size_t& group : groups_) group -= done;
}

}  // namespace dp::simt
