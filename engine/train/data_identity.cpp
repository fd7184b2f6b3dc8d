#include "engine/train/data_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "data/threads.h"
#include "dp/error.h"
#include "dp/trainer.h"
#include "engine/base/sha256.h"
#include "engine/checkpoint/checkpoint.h"

namespace dp {
namespace {

using ClassNames = std::vector<std::string>;
using Counts = std::vector<std::int64_t>;

constexpr std::size_t kMostRecorded = 100'000;
constexpr std::size_t kMostNameBytes = std::size_t{4} << 20;
constexpr std::size_t kMostNamedClasses = 12;

// JSON holds UTF-8 only. Other names, which a file system may have, are escaped.
std::string utf8(const std::string& name) {
  try {
    (void)nlohmann::json(name).dump();
    return name;
  } catch (const nlohmann::json::type_error&) {
    return printable(name);
  }
}

struct Part {
  Counts counts;
  std::string fingerprint;
};

// The bytes of a sample's targets.
std::string targets_of(const Dataset& dataset, std::int64_t index) {
  std::vector<float> targets(static_cast<std::size_t>(dataset.classes()));
  dataset.targets(index, targets);
  return {reinterpret_cast<const char*>(targets.data()), targets.size() * sizeof(float)};
}

// Several threads call sample_id(), because it may wait for a network drive. The result does not depend on their
// number.
Part describe(const Dataset& dataset) {
  constexpr std::int64_t kPiece = 4096;  // samples
  constexpr int kThreads = 16;
  const ClassNames names = dataset.class_names();
  const std::int64_t size = dataset.size(), pieces = (size + kPiece - 1) / kPiece;
  ClassNames digests(static_cast<std::size_t>(pieces));
  std::vector<std::int32_t> labels(static_cast<std::size_t>(size));
  for_ranges(pieces, static_cast<int>(std::min<std::int64_t>(kThreads, std::max<std::int64_t>(pieces, 1))),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t piece = begin; piece < end; ++piece) {
                 Sha256 digest;
                 for (std::int64_t i = piece * kPiece; i < std::min(size, (piece + 1) * kPiece); ++i) {
                   const auto label = dataset.label(i);
                   const bool named = label >= 0 && static_cast<std::size_t>(label) < names.size();
                   digest.add_field(named ? names[static_cast<std::size_t>(label)] : std::to_string(label));
                   if (dataset.has_targets()) digest.add_field(targets_of(dataset, i));
                   if (dataset.has_weights()) digest.add_field(std::to_string(dataset.weight(i)));
                   digest.add_field(dataset.sample_id(i));
                   labels[static_cast<std::size_t>(i)] = label;
                 }
                 digests[static_cast<std::size_t>(piece)] = digest.hexadecimal();
               }
             });
  Sha256 digest;
  digest.add_field(to_string(dataset.image_shape()));
  digest.add_field(std::to_string(size));
  for (const std::string& piece : digests) digest.add_field(piece);
  Part part{Counts(static_cast<std::size_t>(std::max<std::int64_t>(dataset.classes(), 0))), digest.hexadecimal()};
  for (const std::int32_t label : labels)  // the loader rejects a label out of range
    if (label >= 0 && static_cast<std::size_t>(label) < part.counts.size())
      ++part.counts[static_cast<std::size_t>(label)];
  return part;
}

// Shows combining accents as bytes. Otherwise "e" plus an accent looks the same as the single accented letter.
std::string shown(const std::string& name) {
  std::string text;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto byte = [&](std::size_t at) { return at < name.size() ? static_cast<unsigned char>(name[at]) : 0; };
    const bool accent = byte(i) == 0xCC || (byte(i) == 0xCD && byte(i + 1) < 0xB0);  // U+0300 to U+036F
    text += accent ? fmt::format("\\x{:02x}\\x{:02x}", byte(i), byte(i + 1)) : name.substr(i, 1);
    i += accent ? 1 : 0;
  }
  return printable(text);
}

std::string listed(const ClassNames& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNamedClasses); ++i)
    text += (i ? ", '" : "'") + shown(names[i]) + "'";
  return names.size() > kMostNamedClasses ? text + fmt::format(" and {} more", names.size() - kMostNamedClasses) : text;
}

ClassNames missing_from(const ClassNames& names, const ClassNames& others) {
  const std::set<std::string> there(others.begin(), others.end());
  ClassNames missing;
  for (const std::string& name : names)
    if (!there.contains(name)) missing.push_back(name);
  return missing;
}

// Both lists, or only the names that differ if the lists are long.
std::string difference(const ClassNames& had, const ClassNames& now) {
  if (had.size() <= kMostNamedClasses && now.size() <= kMostNamedClasses)
    return fmt::format("has the classes {}, but the data set has {}", listed(had), listed(now));
  const ClassNames gone = missing_from(had, now), added = missing_from(now, had);
  std::string text = fmt::format("has {} classes, and the data set {}", had.size(), now.size());
  if (!gone.empty()) text += ", without " + listed(gone);
  if (!added.empty()) text += fmt::format(", {} {}", gone.empty() ? "with" : "but with", listed(added));
  if (!gone.empty() || !added.empty()) return text;
  const auto first = static_cast<std::size_t>(std::ranges::mismatch(had, now).in1 - had.begin());
  return text + fmt::format(" in another order: class {} is '{}', in the data set '{}'", first, shown(had[first]),
                            shown(now.at(first)));
}

// Classes can be matched by number only if every name in both lists has the same position. Returns the first violation,
// or an empty text.
std::string moved(const ClassNames& had, const ClassNames& now) {
  if (had.size() != now.size()) return fmt::format("there are {} classes, not {}", now.size(), had.size());
  std::map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < had.size(); ++i) numbers.emplace(had[i], i);
  for (std::size_t i = 0; i < now.size(); ++i)
    if (const auto at = numbers.find(now[i]); at != numbers.end() && at->second != i)
      return fmt::format("'{}' was class {} and is now class {}", shown(now[i]), at->second, i);
  return "";
}

std::int64_t total(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }

std::string changed_number(const Counts& had, const Counts& now) {
  return had.empty() || now.empty() || total(had) == total(now) ? ""
                                                                : fmt::format(" ({}, not {})", total(now), total(had));
}

}  // namespace

ClassNames recorded_names(const Dataset& dataset) {
  ClassNames names = dataset.class_names();
  std::size_t bytes = 0;
  for (std::string& name : names) bytes += (name = utf8(name)).size();
  if (names.size() > kMostRecorded || bytes > kMostNameBytes) names.clear();
  return names;
}

DataIdentity identity_of(const Dataset* train, const Dataset& test) {
  Part trained = train ? describe(*train) : Part{}, tested = describe(test);
  for (Part* part : {&trained, &tested})
    if (part->counts.size() > kMostRecorded) part->counts.clear();
  return {recorded_names(test), std::move(trained.counts), std::move(tested.counts), std::move(trained.fingerprint),
          std::move(tested.fingerprint)};
}

void require_same_classes(const std::string& source, const ClassNames& had, const ClassNames& now, bool by_position,
                          const std::function<void(const std::string&)>& notice) {
  if (had == now) return;
  if (had.empty() || now.empty()) {
    if (notice)
      notice(source + (had.empty() ? " records no class names: they are not compared with those of the data set"
                                   : " has class names, but the data set has none: labels are compared by number"));
    return;
  }
  const std::string text = source + " " + difference(had, now);
  const std::string move = moved(had, now);
  if (by_position && move.empty()) {
    if (notice) notice(text + "; class i of the data set uses output i (--classes-from position)");
    return;
  }
  std::string remedy = by_position ? "--classes-from position cannot be used: " + move + "; " : std::string();
  remedy += "name the classes as before";
  if (missing_from(now, had).empty())
    remedy += ", or match them by name with --classes-from data";
  else if (move.empty())
    remedy += ", or, if they were only renamed, use --classes-from position";
  else
    remedy += ", or train a new classifier: --init FILE --init-partial, without --resume and --classes-from";
  throw Error(ErrorCode::data, text + "; " + remedy);
}

std::vector<std::string> changed_samples(const DataIdentity& had, const DataIdentity& now, bool inside_epoch) {
  std::vector<std::string> changes;
  if (!now.train_fingerprint.empty() && had.train_fingerprint != now.train_fingerprint)
    changes.push_back("the training images are not those of the checkpoint" +
                      changed_number(had.train_counts, now.train_counts) +
                      (!inside_epoch ? ""
                       : total(had.train_counts) != total(now.train_counts)
                           ? "; the order of this epoch differs, so some images are read twice and others never"
                           : "; if files were renamed or replaced, the order of this epoch differs, so some images are "
                             "read twice and others never"));
  if (had.test_fingerprint != now.test_fingerprint)
    changes.push_back("the test images are not those of the checkpoint" +
                      changed_number(had.test_counts, now.test_counts) +
                      "; results cannot be compared with earlier ones");
  return changes;
}

void require_same_data(ProcessGroup& group, const DataIdentity& mine) {
  const nlohmann::json own{mine.train_fingerprint, total(mine.train_counts), mine.test_fingerprint,
                           total(mine.test_counts), mine.classes.size()};
  const nlohmann::json first = nlohmann::json::parse(group.from_first(own.dump()));
  if (own == first) return;
  const auto text = [](const nlohmann::json& data) {
    return fmt::format("{} training and {} test images of {} classes", data.at(1).dump(), data.at(3).dump(),
                       data.at(4).dump());
  };
  throw Error(ErrorCode::data,
              fmt::format("the data set of rank {} ({}) is not that of rank 0 ({}): other classes, files or sizes; "
                          "give every rank the same files",
                          group.rank(), text(own), text(first)));
}

nlohmann::ordered_json to_record(const DataIdentity& data) {
  constexpr std::size_t kMostListed = 1000;
  nlohmann::ordered_json record = to_json(data);
  for (const char* list : {"classes", "train_counts", "test_counts"})
    if (record[list].empty() || record[list].size() > kMostListed) record.erase(list);
  return record;
}

}  // namespace dp
