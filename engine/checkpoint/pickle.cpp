#include "engine/checkpoint/pickle.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <span>

#include "engine/base/files.h"

namespace dp {
namespace {

constexpr std::size_t kMostOpcodes = std::size_t{1} << 22;  // opcodes
constexpr std::size_t kMostObjects = std::size_t{1} << 20;  // and places of the memo

// The opcodes that are read. Names and values are those of Python's module pickletools.
enum PickleOpcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinFloat = 'G',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinBytes8 = 0x8e,
  kByteArray8 = 0x96,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kBuild = 'b',
  kNewObj = 0x81,
  kNewObjEx = 0x92,
  kBinPersId = 'Q',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kProto = 0x80,
  kFrame = 0x95,
};

// The name of an opcode that is refused.
std::string opcode_name(std::uint8_t opcode) {
  struct Named {
    std::uint8_t opcode;
    const char* name;
  };
  constexpr Named kNamed[] = {{'i', "INST"},     {'o', "OBJ"},    {0x82, "EXT1"},        {0x83, "EXT2"},
                              {0x84, "EXT4"},    {'P', "PERSID"}, {'g', "GET"},          {'p', "PUT"},
                              {'I', "INT"},      {'L', "LONG"},   {'F', "FLOAT"},        {'S', "STRING"},
                              {'V', "UNICODE"},  {'l', "LIST"},   {'d', "DICT"},         {'0', "POP"},
                              {'1', "POP_MARK"}, {'2', "DUP"},    {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"}};
  for (const Named& named : kNamed)
    if (named.opcode == opcode) return named.name;
  return fmt::format("0x{:02x}", opcode);
}

class PickleReader {
 public:
  PickleReader(std::string_view bytes, AllowedGlobal allowed, const std::string& file)
      : bytes_(bytes), allowed_(allowed), file_(file) {
    for (const std::int64_t value : {0, 0, 1}) {  // None, False and True are one object each
      PickleObject& object = pickle_.objects.emplace_back();
      object.kind = pickle_.objects.size() == 1 ? PickleKind::none : PickleKind::boolean;
      object.integer = value;
    }
  }

  Pickle read() {
    if (opcode() != kProto) fault("does not begin with PROTO");
    if (const auto protocol = number<std::uint8_t>(); protocol < 2 || protocol > 5)
      fault(fmt::format("has protocol {}; 2 to 5 are read", protocol));
    for (std::size_t steps = 0;; ++steps) {
      if (steps == kMostOpcodes) fault("has more than 4,194,304 opcodes");
      begin_ = at_;
      const std::uint8_t next = opcode();
      if (next == kStop) break;
      if (!(scalar(next) || container(next) || object(next) || memo(next)))
        fault(fmt::format("has the opcode {} at byte {}, which PyTorch does not write", opcode_name(next), begin_));
    }
    pickle_.root = pop();
    if (!stack_.empty() || !marks_.empty()) fault("leaves values behind");
    pickle_.bytes = at_;
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fault(const std::string& what) const { throw_data(file_, "its pickle " + what); }
  [[noreturn]] void damaged(const char* what) const { fault(fmt::format("is damaged at byte {}: {}", begin_, what)); }

  // The bytes of the pickle.

  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size() - at_) fault(fmt::format("is truncated at byte {}", at_));
    const std::string_view taken = bytes_.substr(at_, size);
    at_ += size;
    return taken;
  }
  std::uint8_t opcode() { return static_cast<std::uint8_t>(take(1)[0]); }
  template <typename Number>  // little-endian
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <typename Size>
  std::string_view sized() {
    return take(number<Size>());
  }
  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fault(fmt::format("is truncated at byte {}", at_));
    const std::string_view taken = take(end - at_);
    take(1);
    return taken;
  }

  // The stack of Python's unpickler. Items below the last mark cannot be reached.

  PickleObject& make(PickleKind kind) {
    if (pickle_.objects.size() == kMostObjects) fault("has more than 1,048,576 objects");
    stack_.push_back(static_cast<PickleId>(pickle_.objects.size()));
    PickleObject& made = pickle_.objects.emplace_back();
    made.kind = kind;
    return made;
  }
  void make_integer(std::int64_t value) { make(PickleKind::integer).integer = value; }
  void make_text(PickleKind kind, std::string_view text) { make(kind).text = text; }
  void make_of(PickleKind kind, std::vector<PickleId> items) { make(kind).items = std::move(items); }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleId pop() {
    if (stack_.size() <= floor()) damaged("the stack is empty");
    const PickleId id = stack_.back();
    stack_.pop_back();
    return id;
  }
  std::vector<PickleId> pop_items(std::size_t count) {
    if (stack_.size() < floor() + count) damaged("the stack is empty");
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<PickleId> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    return items;
  }
  std::vector<PickleId> pop_to_mark() {
    if (marks_.empty()) damaged("there is no mark");
    std::vector<PickleId> items = pop_items(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
  }
  PickleObject& top() {
    if (stack_.size() <= floor()) damaged("the stack is empty");
    return pickle_.objects[stack_.back()];
  }

  // Each of these returns false for an opcode of another group.

  bool scalar(std::uint8_t next) {
    switch (next) {
      case kNone: stack_.push_back(0); return true;
      case kNewFalse: stack_.push_back(1); return true;
      case kNewTrue: stack_.push_back(2); return true;
      case kBinInt: make_integer(number<std::int32_t>()); return true;
      case kBinInt1: make_integer(number<std::uint8_t>()); return true;
      case kBinInt2: make_integer(number<std::uint16_t>()); return true;
      case kLong1: long_integer(sized<std::uint8_t>()); return true;
      case kLong4: long_integer(sized<std::uint32_t>()); return true;
      case kBinFloat: take(8), make(PickleKind::real); return true;  // no real number has a meaning here
      case kBinString: make_text(PickleKind::text, sized<std::uint32_t>()); return true;
      case kShortBinString: make_text(PickleKind::text, sized<std::uint8_t>()); return true;
      case kBinUnicode: make_text(PickleKind::text, sized<std::uint32_t>()); return true;
      case kShortBinUnicode: make_text(PickleKind::text, sized<std::uint8_t>()); return true;
      case kBinUnicode8: make_text(PickleKind::text, sized<std::uint64_t>()); return true;
      case kBinBytes: make_text(PickleKind::bytes, sized<std::uint32_t>()); return true;
      case kShortBinBytes: make_text(PickleKind::bytes, sized<std::uint8_t>()); return true;
      case kBinBytes8: make_text(PickleKind::bytes, sized<std::uint64_t>()); return true;
      case kByteArray8: make_text(PickleKind::bytes, sized<std::uint64_t>()); return true;
      default: return false;
    }
  }

  // Two's complement, little-endian. Beyond 64 bits only the bytes are kept.
  void long_integer(std::string_view bytes) {
    std::int64_t value = !bytes.empty() && (bytes.back() & 0x80) != 0 ? -1 : 0;
    if (bytes.size() <= sizeof value) std::memcpy(&value, bytes.data(), bytes.size());
    make_integer(bytes.size() <= sizeof value ? value : 0);
    if (bytes.size() > sizeof value) top().text = bytes;
  }

  bool container(std::uint8_t next) {
    switch (next) {
      case kMark: marks_.push_back(stack_.size()); return true;
      case kEmptyList: make(PickleKind::list); return true;
      case kEmptyDict: make(PickleKind::dict); return true;
      case kEmptySet: make(PickleKind::set); return true;
      case kEmptyTuple: make(PickleKind::tuple); return true;
      case kTuple1: make_of(PickleKind::tuple, pop_items(1)); return true;
      case kTuple2: make_of(PickleKind::tuple, pop_items(2)); return true;
      case kTuple3: make_of(PickleKind::tuple, pop_items(3)); return true;
      case kTuple: make_of(PickleKind::tuple, pop_to_mark()); return true;
      case kFrozenSet: make_of(PickleKind::set, pop_to_mark()); return true;
      case kAppend: add(pop_items(1), PickleKind::list); return true;
      case kAppends: add(pop_to_mark(), PickleKind::list); return true;
      case kSetItem: add(pop_items(2), PickleKind::dict); return true;
      case kSetItems: add(pop_to_mark(), PickleKind::dict); return true;
      case kAddItems: add(pop_to_mark(), PickleKind::set); return true;
      default: return false;
    }
  }

  void add(const std::vector<PickleId>& items, PickleKind to) {
    if (to == PickleKind::dict && items.size() % 2 != 0) damaged("a key has no value");
    PickleObject& object = top();
    if (object.kind != to && object.kind != PickleKind::call) damaged("items are added to another kind of object");
    object.items.insert(object.items.end(), items.begin(), items.end());
  }

  bool object(std::uint8_t next) {
    switch (next) {
      case kGlobal: {
        const std::string_view module = line();
        global(module, line());
        return true;
      }
      case kStackGlobal: {
        const std::vector<PickleId> names = pop_items(2);
        for (const PickleId name : names)
          if (pickle_[name].kind != PickleKind::text) damaged("a global has no name");
        global(pickle_[names[0]].text, pickle_[names[1]].text);
        return true;
      }
      case kReduce:
      case kNewObj: call(pop_items(2)); return true;
      case kNewObjEx: {
        const std::vector<PickleId> parts = pop_items(3);
        if (pickle_[parts[2]].kind != PickleKind::dict) damaged("keyword arguments are not a dict");
        call({parts[0], parts[1]});
        return true;
      }
      case kBuild: {
        const PickleId state = pop();
        top().state = state;
        return true;
      }
      case kBinPersId: make_of(PickleKind::persistent, pop_items(1)); return true;
      default: return false;
    }
  }

  void global(std::string_view module, std::string_view name) {
    const std::string_view spelling = allowed_(module, name);
    if (spelling.empty())
      fault(
          fmt::format("names {}.{}, which is not part of a state dict; nothing of it was executed. In Python, save "
                      "the weights alone: torch.save(model.state_dict(), path)",
                      excerpt(module), excerpt(name)));
    make_text(PickleKind::global, spelling);
  }

  void call(std::vector<PickleId> parts) {
    if (pickle_[parts[0]].kind != PickleKind::global) damaged("what it calls is not a global");
    if (pickle_[parts[1]].kind != PickleKind::tuple) damaged("arguments are not a tuple");
    make_of(PickleKind::call, std::move(parts));
  }

  bool memo(std::uint8_t next) {
    switch (next) {
      case kBinPut: put(number<std::uint8_t>()); return true;
      case kLongBinPut: put(number<std::uint32_t>()); return true;
      case kMemoize: put(memoized_); return true;
      case kBinGet: get(number<std::uint8_t>()); return true;
      case kLongBinGet: get(number<std::uint32_t>()); return true;
      case kFrame: take(8); return true;  // frames only help to read ahead
      default: return false;
    }
  }

  void put(std::size_t place) {
    if (place >= kMostObjects) fault("has more than 1,048,576 entries in its memo");
    top();
    if (place >= memo_.size()) memo_.resize(place + 1, PickleObject::kNothing);
    memoized_ += memo_[place] == PickleObject::kNothing;
    memo_[place] = stack_.back();
  }

  void get(std::size_t place) {
    if (place >= memo_.size() || memo_[place] == PickleObject::kNothing) damaged("it refers to nothing");
    stack_.push_back(memo_[place]);
  }

  static_assert(std::endian::native == std::endian::little, "the numbers of a pickle are read as they are");

  std::string_view bytes_;
  AllowedGlobal allowed_;
  const std::string& file_;
  std::size_t at_ = 0, begin_ = 0;  // begin_: of the current opcode
  Pickle pickle_;
  std::vector<PickleId> stack_, memo_;
  std::vector<std::size_t> marks_;
  std::size_t memoized_ = 0;  // MEMOIZE takes the place after them
};

}  // namespace

Pickle read_pickle(std::string_view bytes, AllowedGlobal allowed, const std::string& file) {
  return PickleReader(bytes, allowed, file).read();
}

}  // namespace dp
