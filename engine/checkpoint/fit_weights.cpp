// Converts weights of other programs to the names, types and shapes of a model.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "dp/checkpoint.h"
#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/torch_file.h"

namespace dp {
namespace {

using StoredTypes = std::map<std::string, std::string_view>;

// Components that PyTorch's wrappers insert into names: DataParallel, torch.compile, FSDP, activation checkpointing.
constexpr std::array<std::string_view, 4> kWrappers{"module", "_orig_mod", "_fsdp_wrapped_module",
                                                    "_checkpoint_wrapped_module"};

bool is_counter(const std::string& name, const Tensor& tensor) {
  return tensor.dtype() == DType::i64 && name.ends_with("num_batches_tracked");
}

enum class Module { strip, keep };  // a component `module`, which is a name that people give as well

std::string unwrapped(std::string_view name, Module module = Module::strip) {
  std::string out;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view component = name.substr(begin, end - begin);
    const bool kept = module == Module::keep && component == kWrappers[0];
    if (kept || std::ranges::find(kWrappers, component) == kWrappers.end())
      out.append(out.empty() ? "" : ".").append(component);
    begin = end + 1;
  }
  return out;
}

std::string in_quotes(std::string_view text) { return "'" + excerpt(text) + "'"; }

// Maps the names of a file to those of a model.
class Names {
 public:
  Names(const NamedTensors& own, const NamedTensors& given) {
    std::size_t most = 0;
    for (const auto& [name, tensor] : own) {
      own_.insert(name);
      if (!by_bare_name_.emplace(unwrapped(name), name).second) by_bare_name_[unwrapped(name)].clear();  // not unique
      longest_ = std::max(longest_, name.size());
      most += is_counter(name, tensor) ? 0 : 1;
    }
    const std::vector<std::string> prefixes = prefixes_of(given, (most + 1) / 2);
    if (prefixes.size() > 1 && !prefixes.front().empty())
      throw Error(ErrorCode::data,
                  fmt::format("it holds weights of this model under {} and under {}; save the tensors of one of them",
                              in_quotes(prefixes[0]), in_quotes(prefixes[1])));
    if (!prefixes.empty()) prefix_ = prefixes.front();
  }

  const std::string& prefix() const { return prefix_; }
  // The model's name of a tensor that the file calls `given`. Empty if the model has no such tensor.
  std::string of(const std::string& given) const {
    if (prefix_.empty() && own_.contains(given)) return given;
    const std::string bare = unwrapped(given);
    if (!bare.starts_with(prefix_)) return "";
    const auto found = by_bare_name_.find(bare.substr(prefix_.size()));
    return found == by_bare_name_.end() ? "" : found->second;
  }

 private:
  // The prefixes under which at least `enough` different tensors of the model are given, in alphabetical order.
  std::vector<std::string> prefixes_of(const NamedTensors& given, std::size_t enough) const {
    std::map<std::string, std::set<std::string_view>> found;  // names of the model under a prefix
    for (const auto& [name, tensor] : given) {
      const std::string bare = unwrapped(name);
      for (std::size_t begin = bare.size() - std::min(bare.size(), longest_); begin < bare.size(); ++begin) {
        if (begin > 0 && bare[begin - 1] != '.') continue;
        const auto at = by_bare_name_.find(bare.substr(begin));
        if (at != by_bare_name_.end() && !at->second.ends_with("num_batches_tracked"))
          found[bare.substr(0, begin)].insert(at->second);
      }
    }
    std::vector<std::string> prefixes;
    for (const auto& [prefix, names] : found)
      if (names.size() >= enough) prefixes.push_back(prefix);
    return prefixes;
  }

  std::set<std::string> own_;
  std::map<std::string, std::string> by_bare_name_;
  std::size_t longest_ = 0;
  std::string prefix_;
};

// What was done to several tensors, with their names.
class Changes {
 public:
  void add(const std::string& what, const std::string& name) { names_[what].push_back(name); }
  std::vector<std::string> text() const {
    std::vector<std::string> out;
    for (const auto& [what, names] : names_) {
      std::string list;
      for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 3); ++i)
        list += (i > 0 ? ", " : "") + in_quotes(names[i]);
      if (names.size() > 3) list += fmt::format(" and {} more", names.size() - 3);
      out.push_back(what + " (" + list + ")");
    }
    return out;
  }

 private:
  std::map<std::string, std::vector<std::string>> names_;
};

void note_name(const std::string& given, const std::string& own, Changes& changes) {
  if (given == own) return;
  if (given.ends_with("." + own))
    changes.add(in_quotes(given.substr(0, given.size() - own.size())) + " stripped from names", own);
  else
    changes.add("components of wrappers stripped from names", given);
}

// `given` as `own`, or the reason why not. A given vector stands for a scalar, as in files of PyTorch 0.3.
std::string fit(const std::string& name, const Tensor& own, Tensor& given, std::string_view type, Changes& changes) {
  if (own.shape().rank() == 0 && given.shape().rank() == 1 && given.numel() > 0) {
    changes.add(fmt::format("the first element of shape {} taken", to_string(given.shape())), name);
    given = given.rows(0, 1).reshaped({});
  }
  if (given.shape() != own.shape())
    return fmt::format("is {}, not {}", to_string(given.shape()), to_string(own.shape()));
  try {
    given = given.to(own.dtype());
  } catch (const Error& error) {
    return error.what();
  }
  if (type != to_string(own.dtype()))
    changes.add(fmt::format("converted from {} to {}", type, to_string(own.dtype())), name);
  return "";
}

FittedWeights fitted(const NamedTensors& own, NamedTensors given, const StoredTypes* types) {
  const Names names(own, given);
  std::map<std::string, const Tensor*> missing;
  for (const auto& [name, tensor] : own) missing.emplace(name, &tensor);
  FittedWeights out;
  Changes changes;
  std::set<std::string> seen;
  // A name that needs no change takes precedence over another for the same tensor.
  std::ranges::stable_partition(given, [&](const auto& one) { return missing.contains(one.first); });
  for (auto& [name, tensor] : given) {
    const std::string own_name = names.of(name);
    if (own_name.empty()) {
      const bool outside = !names.prefix().empty() && !unwrapped(name).starts_with(names.prefix());
      out.faults.push_back(in_quotes(name) +
                           (outside ? " does not begin with " + in_quotes(names.prefix()) : " is not in the model"));
      continue;
    }
    if (!seen.insert(own_name).second) {
      out.faults.push_back(in_quotes(own_name) + " is in the file twice" +
                           (name == own_name ? "" : ", also as " + in_quotes(name)));
      continue;
    }
    const Tensor& wanted = *missing.at(own_name);
    missing.erase(own_name);
    const std::string_view type = types ? types->at(name) : std::string_view(to_string(tensor.dtype()));
    note_name(name, own_name, changes);
    const std::string fault = fit(own_name, wanted, tensor, type, changes);
    if (fault.empty())
      out.tensors.emplace_back(own_name, std::move(tensor));
    else
      out.faults.push_back(in_quotes(own_name) + " " + fault);
  }
  for (const auto& [name, tensor] : own)
    if (!missing.contains(name))
      continue;
    else if (is_counter(name, tensor))  // weights of PyTorch before 0.4.1 have none
      changes.add("missing and left unchanged", name);
    else
      out.faults.push_back(in_quotes(name) + " is missing");
  out.changes = changes.text();
  return out;
}

}  // namespace

FittedWeights fit_weights(const NamedTensors& own, NamedTensors given) {
  return fitted(own, std::move(given), nullptr);
}

namespace {

// Reads a file of weights without changes.
struct Given {
  NamedTensors tensors{};
  StoredTypes types{};
  std::map<std::string, std::string> metadata{};
  std::vector<std::string> changes{};  // what was passed over
};

Given read_given(FileSource& file, const std::string& entry) {
  Given given;
  if (is_torch_file(file)) {
    TorchFile read = read_torch_file(file, entry);
    given.tensors = std::move(read.tensors), given.types = std::move(read.types);
    if (!read.entry.empty()) given.changes.push_back(in_quotes(read.entry) + " of the checkpoint read");
    if (!read.passed_over.empty()) given.changes.push_back("passed over: " + read.passed_over);
    return given;
  }
  if (!entry.empty())
    throw Error(ErrorCode::usage,
                file.name() + ": torch.save did not write it, so it has no entry " + in_quotes(entry));
  given.tensors = read_safetensors(file, &given.metadata, &given.types);
  if (given.metadata.contains("optimizer"))  // its names would fit once the name of the slot is stripped
    throw_data(file.name(), "it holds the state of an optimizer, no weights");
  return given;
}

// Removes from the names of `tensors` what wrappers inserted: every component of torch.compile, FSDP and activation
// checkpointing, and the first component of DataParallel and torch.optim.swa_utils if all names have it.
void unwrap_names(NamedTensors& tensors, Changes& changes) {
  constexpr std::string_view kModule = "module.";
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(unwrapped(name, Module::keep));
  const auto has_module = [&](const auto& name) { return name.size() > kModule.size() && name.starts_with(kModule); };
  while (!names.empty() && std::ranges::all_of(names, has_module))
    for (std::string& name : names) name.erase(0, kModule.size());
  if (std::set<std::string_view>(names.begin(), names.end()).size() != names.size()) return;  // no longer unique
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) continue;
    note_name(tensors[i].first, names[i], changes);
    tensors[i].first = std::move(names[i]);
  }
}

}  // namespace

FittedWeights read_weights(const std::string& path, const NamedTensors& own) {
  FileSource file(path);
  Given given = read_given(file, {});
  try {
    FittedWeights out = fitted(own, std::move(given.tensors), &given.types);
    out.changes.insert(out.changes.begin(), given.changes.begin(), given.changes.end());
    return out;
  } catch (const Error& error) {
    throw_data(path, error.what());
  }
}

StoredWeights read_stored_weights(const std::string& path, const std::string& entry) {
  std::error_code ignored;
  Given given;
  if (std::filesystem::is_directory(path, ignored)) {
    VerifiedCheckpoint files = open_checkpoint(checkpoint_in(path), Links::follow);
    FileSource& file = files.average ? *files.average : files.model;
    given = read_given(file, entry);
    given.changes.push_back("read from " + file.name());
    given.metadata.erase("updates");  // of the moving average
  } else {
    FileSource file(path);
    given = read_given(file, entry);
  }
  Changes changes;
  for (const auto& [name, tensor] : given.tensors)
    if (const std::string_view type = given.types.at(name); type != to_string(tensor.dtype()))
      changes.add(fmt::format("converted from {} to {}", type, to_string(tensor.dtype())), name);
  unwrap_names(given.tensors, changes);
  std::ranges::move(changes.text(), std::back_inserter(given.changes));
  return {std::move(given.tensors), std::move(given.metadata), std::move(given.changes)};
}

}  // namespace dp
