#include "engine/checkpoint/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/base/machine.h"
#include "engine/base/text.h"
#include "engine/checkpoint/pickle.h"
#include "engine/checkpoint/zip_file.h"

namespace dp {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kMostStateTensors = 10'000;
constexpr std::size_t kMostDictEntries = std::size_t{1} << 21;  // of dicts, all that are looked at together
constexpr std::size_t kLongestEntry = 1000;                     // of an entry
constexpr std::uint64_t kMostViews = 16;                        // bytes of tensors per byte of the file

// The globals that a pickle may contain. Others are rejected.

struct ElementType {
  std::string_view storage, dtype;  // "torch.FloatStorage", "torch.float32"; storage may be empty
  std::string_view spelling;        // of the type in safetensors; empty: not supported
};
constexpr ElementType kElementTypes[] = {{"torch.FloatStorage", "torch.float32", "F32"},
                                         {"torch.DoubleStorage", "torch.float64", "F64"},
                                         {"torch.HalfStorage", "torch.float16", "F16"},
                                         {"torch.BFloat16Storage", "torch.bfloat16", "BF16"},
                                         {"torch.LongStorage", "torch.int64", "I64"},
                                         {"torch.IntStorage", "torch.int32", "I32"},
                                         {"torch.ShortStorage", "torch.int16", "I16"},
                                         {"torch.CharStorage", "torch.int8", "I8"},
                                         {"torch.ByteStorage", "torch.uint8", "U8"},
                                         {"torch.BoolStorage", "torch.bool", "BOOL"},
                                         {"", "torch.uint16", "U16"},
                                         {"", "torch.uint32", "U32"},
                                         {"", "torch.uint64", "U64"},
                                         {"", "torch.float8_e4m3fn", "F8_E4M3"},
                                         {"", "torch.float8_e5m2", "F8_E5M2"},
                                         {"", "torch.float8_e4m3fnuz", ""},
                                         {"", "torch.float8_e5m2fnuz", ""},
                                         {"torch.ComplexFloatStorage", "torch.complex64", ""},
                                         {"torch.ComplexDoubleStorage", "torch.complex128", ""},
                                         {"torch.QInt8Storage", "torch.qint8", ""},
                                         {"torch.QUInt8Storage", "torch.quint8", ""},
                                         {"torch.QInt32Storage", "torch.qint32", ""}};

constexpr auto kUntyped = "torch.storage.UntypedStorage"sv;
constexpr auto kOrderedDict = "collections.OrderedDict"sv, kDefaultDict = "collections.defaultdict"sv;
constexpr auto kTorchSize = "torch.Size"sv, kParameter = "torch.nn.parameter.Parameter"sv;
constexpr auto kTensor1 = "torch._utils._rebuild_tensor"sv, kTensor2 = "torch._utils._rebuild_tensor_v2"sv,
               kTensor3 = "torch._utils._rebuild_tensor_v3"sv, kRebuiltParameter = "torch._utils._rebuild_parameter"sv,
               kParameterWithState = "torch._utils._rebuild_parameter_with_state"sv,
               kFromType = "torch._tensor._rebuild_from_type_v2"sv;
constexpr std::string_view kMakesTensors[] = {
    kTensor1, kTensor2, kTensor3, kParameter, kRebuiltParameter, kParameterWithState, kFromType};
// Types of harmless values in checkpoints. Such values are ignored.
constexpr std::string_view kPassedOver[] = {kUntyped,
                                            kOrderedDict,
                                            kDefaultDict,
                                            kTorchSize,
                                            "collections.Counter",
                                            "collections.deque",
                                            "argparse.Namespace",
                                            "torch.device",
                                            "torch.Tensor",
                                            "torch.serialization._get_layout",
                                            "_codecs.encode",
                                            "builtins.set",
                                            "builtins.frozenset",
                                            "builtins.bytearray",
                                            "builtins.complex",
                                            "builtins.dict",
                                            "builtins.list",
                                            "builtins.tuple",
                                            "builtins.int",
                                            "builtins.float",
                                            "builtins.bool",
                                            "builtins.str",
                                            "builtins.object",
                                            "builtins.slice",
                                            "builtins.range",
                                            "__builtin__.set",
                                            "__builtin__.frozenset",
                                            "__builtin__.object",
                                            "__builtin__.dict",
                                            "__builtin__.list",
                                            "__builtin__.complex",
                                            "__builtin__.bytearray",
                                            "copyreg._reconstructor",
                                            "copy_reg._reconstructor",
                                            "datetime.datetime",
                                            "datetime.date",
                                            "datetime.timedelta",
                                            "pathlib.PosixPath",
                                            "pathlib.WindowsPath",
                                            "pathlib.PurePosixPath",
                                            "pathlib.PureWindowsPath",
                                            "pathlib._local.PosixPath",
                                            "pathlib._local.WindowsPath",
                                            "numpy.dtype",
                                            "numpy.ndarray",
                                            "numpy.core.multiarray.scalar",
                                            "numpy._core.multiarray.scalar",
                                            "numpy.core.multiarray._reconstruct",
                                            "numpy._core.multiarray._reconstruct",
                                            "pytorch_lightning.utilities.parsing.AttributeDict",
                                            "lightning.fabric.utilities.data.AttributeDict",
                                            "lightning_fabric.utilities.data.AttributeDict",
                                            "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
                                            "pytorch_lightning.callbacks.early_stopping.EarlyStopping"};

std::string_view allowed_global(std::string_view module, std::string_view name) {
  const auto is = [&](std::string_view spelling) {
    return spelling.size() == module.size() + 1 + name.size() && spelling.starts_with(module) &&
           spelling[module.size()] == '.' && spelling.ends_with(name);
  };
  for (const ElementType& type : kElementTypes)
    for (const std::string_view spelling : {type.storage, type.dtype})
      if (is(spelling)) return spelling;
  for (const std::string_view spelling : kMakesTensors)
    if (is(spelling)) return spelling;
  for (const std::string_view spelling : kPassedOver)
    if (is(spelling)) return spelling;
  return {};
}

// A file in one of the two formats: its pickle, and where the bytes of its storages are.

struct StorageRange {
  std::uint64_t begin = 0, bytes = 0;
};

struct TorchContents {
  TorchContents() = default;
  TorchContents(const TorchContents&) = delete;  // the pickle's texts are views of `bytes`
  TorchContents& operator=(const TorchContents&) = delete;

  std::string bytes;  // the pickles
  Pickle pickle;
  bool big_endian = false;
  std::string prefix{};  // of the names in the zip
  ZipDirectory zip{};
  std::map<std::string_view, StorageRange> legacy{};  // by key
};

// Storage keys of the older format, with the width of their elements, as the pickle describes them.
std::map<std::string_view, std::uint64_t> widths_of_storages(const Pickle& pickle, const std::string& file);

std::string entry_text(ByteSource& source, const std::string& name, const ZipEntry& entry, std::uint64_t longest) {
  if (entry.bytes > longest)
    throw_data(source.name(), fmt::format("the entry '{}' of the zip has {} bytes; at most {} are read", excerpt(name),
                                          entry.bytes, longest));
  std::string text(entry.bytes, '\0');
  source.read(checked_zip_entry(source, name, entry), std::as_writable_bytes(std::span(text)));
  return text;
}

void read_zip(ByteSource& source, TorchContents& contents) {
  contents.zip = read_zip_directory(source);
  const auto pickle = std::ranges::find_if(contents.zip, [](const auto& entry) {
    return entry.first.ends_with("/data.pkl") && entry.first.find('/') == entry.first.size() - "/data.pkl"sv.size();
  });
  if (pickle == contents.zip.end())
    throw_data(source.name(), "it is a zip archive without data.pkl; torch.save did not write it");
  contents.prefix = pickle->first.substr(0, pickle->first.find('/') + 1);
  if (contents.zip.contains(contents.prefix + "constants.pkl"))
    throw_data(source.name(),
               "it is a TorchScript program; in Python, save its weights: torch.save(module.state_dict(), path)");
  if (const auto order = contents.zip.find(contents.prefix + "byteorder"); order != contents.zip.end()) {
    const std::string text = entry_text(source, order->first, order->second, 16);
    if (text != "little" && text != "big") throw_data(source.name(), "has the byte order '" + excerpt(text) + "'");
    contents.big_endian = text == "big";
  }
  contents.bytes = entry_text(source, pickle->first, pickle->second, kLongestPickle);
  contents.pickle = read_pickle(contents.bytes, allowed_global, source.name());
  if (contents.pickle.bytes != contents.bytes.size())
    throw_data(source.name(), "its pickle is followed by other bytes; the file is damaged");
}

// The magic number of the older format, as the bytes of a LONG1 opcode.
constexpr auto kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv;

// Five pickles in a row: a magic number, a version, a description of the machine, the object, and the keys of its
// storages. For each key follow its number of elements (8 bytes) and the elements, always little-endian.
void read_legacy(ByteSource& source, TorchContents& contents) {
  contents.bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), kLongestPickle)));
  source.read(0, std::as_writable_bytes(std::span(contents.bytes)));
  std::string_view rest = contents.bytes;
  const auto next = [&] {
    Pickle pickle = read_pickle(rest, allowed_global, source.name());
    rest.remove_prefix(pickle.bytes);
    return pickle;
  };
  const auto root_of = [](const Pickle& pickle) { return pickle[pickle.root]; };
  if (root_of(next()).text != kMagic)
    throw_data(source.name(), "it is a Python pickle, but torch.save did not write it");
  if (root_of(next()).integer != 1001) throw_data(source.name(), "has another version of the older format than 1001");
  next();
  contents.pickle = next();
  const std::map<std::string_view, std::uint64_t> widths = widths_of_storages(contents.pickle, source.name());
  const Pickle keys = next();
  std::uint64_t at = contents.bytes.size() - rest.size();
  for (const PickleId id : keys[keys.root].items) {
    const std::string_view key = keys[id].text;
    const auto width = widths.find(key);
    if (width == widths.end()) throw_data(source.name(), "has a storage '" + excerpt(key) + "' that no tensor uses");
    std::uint64_t count = 0, bytes = 0;
    if (source.size() - at < sizeof count) throw_data(source.name(), "is truncated");
    source.read(at, std::as_writable_bytes(std::span(&count, 1)));
    at += sizeof count;
    if (__builtin_mul_overflow(count, width->second, &bytes) || bytes > source.size() - at)
      throw_data(source.name(), "is truncated: its storage '" + excerpt(key) + "' ends after the file");
    if (!contents.legacy.emplace(width->first, StorageRange{at, bytes}).second)
      throw_data(source.name(), "has two storages named '" + excerpt(key) + "'");
    at += bytes;
  }
  if (at != source.size()) throw_data(source.name(), "has bytes after its last storage; the file is damaged");
}

// Interprets the objects of a pickle.

struct StorageView {
  std::string_view key;
  std::string_view type;                    // a global
  std::uint64_t elements = 0;               // of the whole storage; bytes if it is untyped
  std::uint64_t begin = 0, end = elements;  // the part that it is; all but in the older format
};

struct TensorView {
  const PickleObject* storage = nullptr;
  std::string_view dtype{};  // empty: that of the storage
  std::vector<std::int64_t> sizes{}, strides{};
  std::int64_t offset = 0;
};

class Objects {
 public:
  Objects(const Pickle& pickle, const std::string& file) : pickle_(pickle), file_(file) {}

  [[noreturn]] void fault(const std::string& what) const { throw_data(file_, what); }
  const PickleObject& operator[](PickleId id) const { return pickle_[id]; }

  std::string_view callee(const PickleObject& object) const {
    return object.kind == PickleKind::call ? pickle_[object.items[0]].text : std::string_view();
  }
  bool makes_tensor(const PickleObject& object) const { return makes_tensor(callee(object)); }
  bool is_dict(const PickleObject& object) const {
    const std::string_view made_by = callee(object);
    return object.kind == PickleKind::dict || made_by == kOrderedDict || made_by == kDefaultDict;
  }

  // Keys and values of a dict in turn.
  std::vector<PickleId> entries(const PickleObject& dict) {
    std::vector<PickleId> all;
    const auto added = std::span(dict.items).subspan(dict.kind == PickleKind::call ? 2 : 0);
    if (callee(dict) == kOrderedDict) {  // Python 2: OrderedDict([[key, value], ...])
      const std::vector<PickleId>& arguments = pickle_[dict.items[1]].items;
      for (const PickleId id : arguments.empty() ? arguments : pickle_[arguments[0]].items) {
        const std::vector<PickleId>& pair = pickle_[id].items;
        if (pair.size() != 2) fault("its pickle is damaged: an OrderedDict is not made of pairs");
        looked_at(2);
        all.insert(all.end(), pair.begin(), pair.end());
      }
    }
    if (added.size() % 2 != 0) fault("its pickle is damaged: a key has no value");
    looked_at(added.size());
    all.insert(all.end(), added.begin(), added.end());
    return all;
  }

  // Whether it is a dict from names to values, of which at least one is a tensor.
  bool is_state_dict(PickleId id) {
    if (!is_dict(pickle_[id])) return false;
    const auto [at, is_new] = is_state_dict_.emplace(id, false);
    if (!is_new) return at->second;
    const std::vector<PickleId> all = entries(pickle_[id]);
    bool named = true, has_tensor = false;
    for (std::size_t i = 0; i < all.size(); i += 2) {
      named = named && pickle_[all[i]].kind == PickleKind::text;
      has_tensor = has_tensor || makes_tensor(pickle_[all[i + 1]]);
    }
    return at->second = named && has_tensor;
  }

  TensorView tensor(PickleId id) const {
    constexpr int kMostWrappers = 8;  // a Parameter of a tensor with attributes has three
    std::string_view made_by = callee(pickle_[id]);
    const PickleObject* arguments = &pickle_[pickle_[id].items[1]];
    PickleId state = pickle_[id].state;
    for (int wrappers = 0; wrappers < kMostWrappers; ++wrappers) {
      const std::vector<PickleId>& given = arguments->items;
      if (made_by == kTensor1 || made_by == kTensor2 || made_by == kTensor3) return bare_tensor(made_by, given);
      if (given.empty() || !makes_tensor(made_by)) fault("its pickle has a parameter without a tensor");
      if (made_by == kFromType) {  // (function, type, arguments, state)
        if (given.size() != 4 || pickle_[given[0]].kind != PickleKind::global ||
            pickle_[given[2]].kind != PickleKind::tuple)
          fault("its pickle has a damaged tensor with attributes");
        made_by = pickle_[given[0]].text;
        arguments = &pickle_[given[2]];
        state = PickleObject::kNothing;
        continue;
      }
      PickleId data = given[0];  // of a parameter
      // The first versions of PyTorch may give the data afterwards.
      if (state != PickleObject::kNothing && pickle_[state].kind == PickleKind::tuple &&
          pickle_[state].items.size() == 5)
        data = pickle_[state].items[0];
      if (pickle_[data].kind != PickleKind::call) fault("its pickle has a parameter without a tensor");
      made_by = callee(pickle_[data]);
      arguments = &pickle_[pickle_[data].items[1]];
      state = pickle_[data].state;
    }
    fault("its pickle has a tensor in more than eight wrappers");
  }

  // ('storage', type, key, device, elements), and in the older format (key, offset, elements) of a part, or None.
  StorageView storage(const PickleObject& persistent) const {
    const PickleObject& id = pickle_[persistent.items[0]];
    if (id.kind != PickleKind::tuple || id.items.empty()) fault("its pickle has a storage without an identifier");
    const auto part = [&](std::size_t i) -> const PickleObject& { return pickle_[id.items[i]]; };
    if (part(0).text != "storage")
      fault("its pickle has a persistent object '" + excerpt(part(0).text) +
            "', no storage; in Python, save the weights alone: torch.save(model.state_dict(), path)");
    constexpr std::size_t kLongestKey = 100;
    if (id.items.size() < 5 || part(1).kind != PickleKind::global || part(2).kind != PickleKind::text ||
        part(2).text.size() > kLongestKey)
      fault("its pickle has a damaged storage");
    StorageView view{part(2).text, part(1).text, count(part(4))};
    if (id.items.size() > 5 && part(5).kind != PickleKind::none) {
      const std::vector<PickleId>& of = part(5).items;
      if (of.size() != 3) fault("its pickle has a damaged part of a storage");
      view.begin = count(pickle_[of[1]]);
      if (__builtin_add_overflow(view.begin, count(pickle_[of[2]]), &view.end) || view.end > view.elements)
        fault("its pickle has a part of a storage that ends after it");
    }
    return view;
  }

 private:
  static bool makes_tensor(std::string_view global) {
    return std::ranges::find(kMakesTensors, global) != std::end(kMakesTensors);
  }
  void looked_at(std::size_t entries) {
    if (entries > kMostDictEntries - looked_at_) fault("its pickle has more than 2,097,152 entries in dicts");
    looked_at_ += entries;
  }
  std::uint64_t count(const PickleObject& object) const {
    if (object.kind != PickleKind::integer || object.integer < 0 || !object.text.empty())
      fault("its pickle has a size that is not a number");
    return static_cast<std::uint64_t>(object.integer);
  }
  std::vector<std::int64_t> counts(const PickleObject* object, const char* what) const {
    if (callee(*object) == kTorchSize && !pickle_[object->items[1]].items.empty())
      object = &pickle_[pickle_[object->items[1]].items[0]];
    if (object->kind != PickleKind::tuple) fault(fmt::format("its pickle has a tensor whose {} are not a tuple", what));
    if (object->items.size() > Shape::kMaxRank) fault("its pickle has a tensor of more than 8 dimensions");
    std::vector<std::int64_t> numbers;
    for (const PickleId id : object->items) {
      const PickleObject& number = pickle_[id];
      if (number.kind != PickleKind::integer || number.integer < 0 || !number.text.empty())
        fault(fmt::format("its pickle has a tensor with {} below 0 or beyond 2^63", what));
      numbers.push_back(number.integer);
    }
    return numbers;
  }
  TensorView bare_tensor(std::string_view made_by, const std::vector<PickleId>& given) const {
    const bool third = made_by == kTensor3;
    if (given.size() < (made_by == kTensor1 ? 4u : third ? 7u : 6u))
      fault("its pickle has a tensor with too few arguments");
    TensorView view;
    view.storage = &pickle_[given[0]];
    if (view.storage->kind != PickleKind::persistent) fault("its pickle has a tensor without a storage");
    const std::uint64_t offset = count(pickle_[given[1]]);
    view.offset = static_cast<std::int64_t>(offset);
    view.sizes = counts(&pickle_[given[2]], "sizes");
    view.strides = counts(&pickle_[given[3]], "strides");
    if (view.sizes.size() != view.strides.size())
      fault("its pickle has a tensor with more sizes than strides, or less");
    if (third && pickle_[given[6]].kind != PickleKind::global) fault("its pickle has a tensor without a dtype");
    if (third) view.dtype = pickle_[given[6]].text;
    return view;
  }

  const Pickle& pickle_;
  const std::string& file_;
  std::map<PickleId, bool> is_state_dict_;
  std::size_t looked_at_ = 0;
};

const ElementType* element_type(std::string_view storage_or_dtype) {
  const auto* const found = std::ranges::find_if(kElementTypes, [&](const ElementType& type) {
    return type.storage == storage_or_dtype || type.dtype == storage_or_dtype;
  });
  return found == std::end(kElementTypes) ? nullptr : found;
}

const StoredType& stored_type(std::string_view storage_or_dtype, const std::string& file, std::string_view tensor) {
  const ElementType* const type = element_type(storage_or_dtype);
  const StoredType* const stored = type ? find_stored_type(type->spelling) : nullptr;
  if (stored == nullptr)
    throw_data(file, fmt::format("tensor '{}' has the dtype {}, which is not supported; convert it to float32",
                                 excerpt(tensor), type ? type->dtype.substr(6) : excerpt(storage_or_dtype)));
  return *stored;
}

std::uint64_t width_of(const StorageView& storage, const std::string& file) {
  return storage.type == kUntyped ? 1 : stored_type(storage.type, file, storage.key).width;
}

std::map<std::string_view, std::uint64_t> widths_of_storages(const Pickle& pickle, const std::string& file) {
  const Objects objects(pickle, file);
  std::map<std::string_view, std::uint64_t> widths;
  for (const PickleObject& object : pickle.objects) {
    if (object.kind != PickleKind::persistent) continue;
    const StorageView storage = objects.storage(object);
    const std::uint64_t width = width_of(storage, file);
    if (!widths.emplace(storage.key, width).second && widths[storage.key] != width)
      throw_data(file, "its storage '" + excerpt(storage.key) + "' has two types");
  }
  return widths;
}

// Chooses the state dict in a checkpoint.

// Names of the entries with a moving average or the weights: those of torchvision, timm, Lightning and most examples.
constexpr std::string_view kKnownEntries[] = {"state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model"};

// A module's extra state in its state dict, which may be any value.
constexpr auto kExtraState = "_extra_state"sv;

struct ChosenEntry {
  PickleId id = 0;
  std::string_view entry{};
  std::vector<std::string_view> others{};
};

std::string name_in_quotes(std::string_view text) { return "'" + excerpt(text) + "'"; }

std::string list_of(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 8); ++i)
    text += (i > 0 ? ", " : "") + name_in_quotes(names[i]);
  return text + (names.size() > 8 ? fmt::format(" and {} more", names.size() - 8) : "");
}

ChosenEntry choose_entry(Objects& objects, PickleId root, const std::string& wanted) {
  if (!objects.is_dict(objects[root]))
    objects.fault("it does not hold a state dict; in Python, save one: torch.save(model.state_dict(), path)");
  std::map<std::string_view, PickleId> state_dicts;
  std::vector<std::string_view> names;
  const std::vector<PickleId> all = objects.entries(objects[root]);
  for (std::size_t i = 0; i < all.size(); i += 2) {
    const PickleObject& key = objects[all[i]];
    if (key.kind != PickleKind::text) continue;
    if (key.text.size() > kLongestEntry) objects.fault("has an entry with a name of more than 1,000 bytes");
    names.push_back(key.text);
    if (!key.text.ends_with(kExtraState) && objects.is_state_dict(all[i + 1])) state_dicts[key.text] = all[i + 1];
  }
  if (!wanted.empty()) {
    const auto found = state_dicts.find(wanted);
    if (found == state_dicts.end())
      objects.fault("has no state dict " + name_in_quotes(wanted) + "; its entries are " + list_of(names));
    std::erase(names, found->first);
    return {found->second, found->first, names};
  }
  if (state_dicts.empty() && objects.is_state_dict(root)) return {root};
  if (state_dicts.empty())
    objects.fault("has no state dict of tensors" + (names.empty() ? "" : "; its entries are " + list_of(names)));
  auto chosen = state_dicts.size() == 1 ? state_dicts.begin() : state_dicts.end();
  for (const std::string_view known : kKnownEntries)
    if (chosen == state_dicts.end()) chosen = state_dicts.find(known);
  if (chosen == state_dicts.end()) {
    std::vector<std::string_view> several;
    for (const auto& [name, id] : state_dicts) several.push_back(name);
    objects.fault("has several state dicts: " + list_of(several) +
                  "; take one: dp_train convert FILE --entry NAME -o OUT.safetensors");
  }
  std::erase(names, chosen->first);
  return {chosen->second, chosen->first, names};
}

// Tensors.

class TensorReader {
 public:
  TensorReader(ByteSource& source, const TorchContents& contents, Objects& objects)
      : source_(source), contents_(contents), objects_(objects) {}

  // Checks a tensor against the file. No tensor is allocated.
  void add(std::string_view name, PickleId id) {
    const std::string reason = is_utf8(name) ? fault_of_tensor_name(name) : "is not UTF-8";
    if (!reason.empty()) throw_data(source_.name(), "has the tensor name '" + excerpt(name) + "', which " + reason);
    if (planned_.size() == kMostStateTensors) throw_data(source_.name(), "has more than 10,000 tensors");
    const std::string tensor = "tensor '" + excerpt(name) + "' ";
    Planned one{std::string(name), objects_.tensor(id)};
    const StorageView storage = objects_.storage(*one.view.storage);
    one.stored = &stored_type(one.view.dtype.empty() ? storage.type : one.view.dtype, source_.name(), name);
    const Reach reach = reach_of(one.view, tensor);
    one.shape = Shape(one.view.sizes);
    const StorageRange range = range_of(storage, tensor);
    if (reach.count > 0) {
      std::uint64_t end = 0;
      if (__builtin_mul_overflow(reach.end, one.stored->width, &end) || end > range.bytes)
        throw_data(source_.name(), tensor + fmt::format("of shape {} ends after its storage of {} bytes",
                                                        to_string(one.shape), range.bytes));
      const std::uint64_t elements = reach.end - reach.begin;
      if (reach.count > elements) throw_data(source_.name(), tensor + "repeats elements; save a contiguous one");
      one.begin = range.begin + reach.begin * one.stored->width;
      one.bytes = elements * one.stored->width;
    }
    read_ += one.bytes;
    if (read_ / kMostViews > source_.size())
      throw_data(source_.name(), "has views of its storages of more than 16 times its size");
    needed_ += reach.count * size_of(one.stored->type);
    planned_.push_back(std::move(one));
  }

  void read(TorchFile& out) {
    if (const std::uint64_t available = available_memory(); needed_ > available)
      throw_data(source_.name(), fmt::format("needs {} bytes of memory, but {} are free", needed_, available));
    out.tensors.reserve(planned_.size());
    for (const Planned& one : planned_) {
      out.tensors.emplace_back(one.name, read(one));
      if (!out.types.emplace(one.name, one.stored->name).second)
        throw_data(source_.name(), "has two tensors named '" + excerpt(one.name) + "'");
    }
  }

 private:
  struct Planned {
    std::string name;
    TensorView view;
    const StoredType* stored = nullptr;
    Shape shape{};
    std::uint64_t begin = 0, bytes = 0;  // in the file; from the first to the last element
  };

  // Where a tensor is in its storage: it has `count` elements, all of them between the elements `begin` and `end`.
  struct Reach {
    std::uint64_t begin = 0, end = 0, count = 0;
  };
  Reach reach_of(const TensorView& view, const std::string& tensor) const {
    std::int64_t count = 1, last = view.offset;
    bool overflow = false;
    for (std::size_t i = 0; i < view.sizes.size(); ++i) {
      std::int64_t reach = 0;
      overflow = overflow || __builtin_mul_overflow(count, view.sizes[i], &count) ||
                 __builtin_mul_overflow(std::max<std::int64_t>(view.sizes[i] - 1, 0), view.strides[i], &reach) ||
                 __builtin_add_overflow(last, reach, &last);
    }
    if (overflow) throw_data(source_.name(), tensor + "has more than 2^63 elements, or strides beyond 2^63");
    return {static_cast<std::uint64_t>(view.offset), static_cast<std::uint64_t>(last) + 1,
            static_cast<std::uint64_t>(count)};
  }

  // The bytes of a storage, or of a part of one.
  StorageRange range_of(const StorageView& storage, const std::string& tensor) {
    const std::uint64_t width = width_of(storage, source_.name());
    std::uint64_t bytes = 0;
    const bool overflow = __builtin_mul_overflow(storage.elements, width, &bytes);
    const auto [known, is_new] = ranges_.emplace(storage.key, StorageRange{});
    if (is_new) known->second = located(storage, tensor);
    if (overflow || known->second.bytes != bytes)
      throw_data(source_.name(), tensor + fmt::format("has a storage of {} elements, but the file has {} bytes of it",
                                                      storage.elements, known->second.bytes));
    return {known->second.begin + storage.begin * width, (storage.end - storage.begin) * width};
  }

  StorageRange located(const StorageView& storage, const std::string& tensor) {
    const std::string name = contents_.prefix + "data/" + std::string(storage.key);
    if (const auto in_zip = contents_.zip.find(name); in_zip != contents_.zip.end())
      return {checked_zip_entry(source_, name, in_zip->second), in_zip->second.bytes};
    const auto legacy = contents_.legacy.find(storage.key);
    if (legacy == contents_.legacy.end()) throw_data(source_.name(), tensor + "has a storage that is not in the file");
    return legacy->second;
  }

  Tensor read(const Planned& one) {
    Tensor tensor(one.shape, one.stored->type);
    const std::span<std::byte> memory(static_cast<std::byte*>(tensor.raw()), tensor.bytes());
    const std::uint64_t width = one.stored->width;
    const std::span<std::byte> stored = memory.last(static_cast<std::size_t>(one.shape.numel()) * width);
    if (one.bytes == stored.size() && is_contiguous(one.view)) {
      source_.read(one.begin, stored);
    } else if (!stored.empty()) {
      std::vector<std::byte> range(one.bytes);
      source_.read(one.begin, range);
      gather(one.view, range.data(), width, stored);
    }
    if (contents_.big_endian)
      for (std::size_t i = 0; i < stored.size(); i += width) std::ranges::reverse(stored.subspan(i, width));
    if (one.stored->widen && !one.stored->widen(memory))
      throw_data(source_.name(),
                 "tensor '" + excerpt(one.name) + "' has a value beyond the range of " + to_string(one.stored->type));
    return tensor;
  }

  static bool is_contiguous(const TensorView& view) {
    std::int64_t expected = 1;
    for (std::size_t i = view.sizes.size(); i-- > 0;) {
      if (view.sizes[i] != 1 && view.strides[i] != expected) return false;
      expected *= view.sizes[i];
    }
    return true;
  }

  // Copies the elements of a view of `from` in row-major order.
  static void gather(const TensorView& view, const std::byte* from, std::uint64_t width, std::span<std::byte> to) {
    std::array<std::int64_t, Shape::kMaxRank> at{};
    std::int64_t element = 0;
    for (std::size_t done = 0; done < to.size(); done += width) {
      std::memcpy(to.data() + done, from + static_cast<std::uint64_t>(element) * width, width);
      for (std::size_t axis = view.sizes.size(); axis-- > 0;) {
        element += view.strides[axis];
        if (++at[axis] < view.sizes[axis]) break;
        element -= view.strides[axis] * view.sizes[axis];
        at[axis] = 0;
      }
    }
  }

  ByteSource& source_;
  const TorchContents& contents_;
  Objects& objects_;
  std::map<std::string_view, StorageRange> ranges_;  // by key
  std::vector<Planned> planned_;
  std::uint64_t read_ = 0, needed_ = 0;
};

// torch.optim.swa_utils.AveragedModel has the tensors of `module`, and counts its updates.
constexpr auto kAverageCounter = "n_averaged"sv;
bool is_averaged_model(const Objects& objects, const std::vector<PickleId>& entries) {
  for (std::size_t i = 0; i < entries.size(); i += 2) {
    const std::string_view name = objects[entries[i]].text;
    if (name != kAverageCounter && !name.starts_with("module.")) return false;
  }
  return true;
}

std::string torch_head(ByteSource& source) {
  std::string begin(static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), 512)), '\0');
  source.read(0, std::as_writable_bytes(std::span(begin)));
  return begin;
}

bool is_pickle(std::string_view begin) {
  return begin.size() > 2 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5;
}
bool is_tar(std::string_view begin) { return begin.size() >= 262 && begin.substr(257, 5) == "ustar"; }

}  // namespace

bool is_torch_file(ByteSource& source) {
  const std::string begin = torch_head(source);
  if (begin.size() > 8 && begin[8] == '{') return false;  // where the JSON of safetensors begins
  return begin.starts_with("PK\3\4") || is_pickle(begin) || is_tar(begin);
}

TorchFile read_torch_file(ByteSource& source, const std::string& entry) try {
  const std::string begin = torch_head(source);
  if (is_tar(begin))
    throw_data(source.name(),
               "it is a tar archive, as the first versions of PyTorch wrote; load it in PyTorch and save it again");
  TorchContents contents;
  if (begin.starts_with("PK\3\4"))
    read_zip(source, contents);
  else if (is_pickle(begin))
    read_legacy(source, contents);
  else
    throw_data(source.name(), "torch.save did not write it");
  Objects objects(contents.pickle, source.name());
  ChosenEntry choice = choose_entry(objects, contents.pickle.root, entry);
  TensorReader tensors(source, contents, objects);
  const std::vector<PickleId> entries = objects.entries(objects[choice.id]);
  const bool averaged = is_averaged_model(objects, entries);
  for (std::size_t i = 0; i < entries.size(); i += 2) {
    const std::string_view name = objects[entries[i]].text;
    const PickleObject& value = objects[entries[i + 1]];
    const bool nested = value.kind == PickleKind::list || value.kind == PickleKind::tuple || objects.is_dict(value);
    if (objects.makes_tensor(value) && !(averaged && name == kAverageCounter))
      tensors.add(name, entries[i + 1]);
    else if (nested && !name.ends_with(kExtraState))
      throw_data(source.name(), "the entry " + name_in_quotes(name) + " of its state dict is not a tensor");
    else
      choice.others.push_back(name);
  }
  TorchFile out{.entry = std::string(choice.entry), .passed_over = list_of(choice.others)};
  tensors.read(out);
  return out;
} catch (const std::bad_alloc&) {
  throw_data(source.name(), "does not fit into memory");
}

NamedTensors read_torch_file(const std::string& path, const std::string& entry) {
  FileSource source(path);
  return read_torch_file(source, entry).tensors;
}

}  // namespace dp
