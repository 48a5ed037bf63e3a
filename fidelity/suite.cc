#include "fidelity/suite.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/index.h"
#include "fidelity/random.h"

namespace quire {

Digest record_hash(const SuiteRecord& r) {
  Sha256 hash;
  hash.update_u64(r.documents ? r.documents->size() : 0);
  if (r.documents) {
    for (const auto& d : *r.documents) hash.update_field(d.title).update_field(d.text);
  }
  hash.update_field(r.question).update_field(r.kind);
  hash.update_u64(r.answers.size());
  for (const auto& a : r.answers) hash.update_field(a);
  hash.update_u64(static_cast<std::uint64_t>(r.rule))
      .update_u64(static_cast<std::uint64_t>(r.max_tokens))
      .update_u64(r.first_line ? 1 : 0);
  for (const auto& t : r.turns) hash.update_field(t.question).update_field(t.answer);
  for (const auto& s : r.support) hash.update_u64(s.document).update_u64(s.begin).update_u64(s.end);
  if (!r.supporting_ids.empty() && r.documents) {
    // By their places, as ids are names only.
    hash.update_field("supporting_ids");
    for (std::size_t d = 0; d < r.documents->size(); ++d)
      if (std::ranges::count(r.supporting_ids, (*r.documents)[d].id) > 0) hash.update_u64(d);
  }
  return hash.finish();
}

Digest Suite::hash() const {
  Sha256 hash;
  hash.update_field(instruction);
  hash.update_u64(records.size());
  for (const auto& r : records) hash.update_field(record_hash(r).hex());
  return hash.finish();
}

std::vector<std::size_t> distinct_records(const Suite& suite) {
  // Many questions share their documents, which are the long part.
  std::map<const void*, Digest> digests;
  std::set<Digest> seen;
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < suite.records.size(); ++i) {
    const SuiteRecord& r = suite.records[i];
    const auto [known, fresh] = digests.try_emplace(r.documents.get());
    if (fresh && r.documents) {
      Sha256 hash;
      for (const auto& d : *r.documents) hash.update_field(d.title).update_field(d.text);
      known->second = hash.finish();
    }
    Sha256 hash;
    hash.update_field(known->second.hex()).update_field(r.question);
    for (const auto& t : r.turns) hash.update_field(t.question).update_field(t.answer);
    if (seen.insert(hash.finish()).second) out.push_back(i);
  }
  return out;
}

std::vector<std::size_t> select_records(const Suite& suite, std::int64_t per_kind,
                                        std::uint64_t seed) {
  std::map<std::string, std::vector<std::size_t>> by_kind;
  for (const std::size_t i : distinct_records(suite)) by_kind[suite.records[i].kind].push_back(i);
  std::vector<std::size_t> out;
  for (auto& [kind, indices] : by_kind) {
    if (per_kind > 0 && indices.size() > static_cast<std::size_t>(per_kind)) {
      Random random(seed, kind);
      random.shuffle(indices);
      indices.resize(to_size(per_kind));
    }
    out.insert(out.end(), indices.begin(), indices.end());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace quire
