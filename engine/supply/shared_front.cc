#include "engine/supply/shared_front.h"

#include <algorithm>
#include <numeric>

#include "base/index.h"

namespace quire {

SharedFront::SharedFront(QueryRun& run)
    : run_(run),
      front_(causal_front(run.request, run)),
      seed_(run.core.facts.names.key_seed(run.request.tenant, run.request.salt_digest)) {
  if (!run_.sparse_prefill()) return;
  // Rows within the band are exact; those after it are not shared with other requests.
  front_.token_ids.resize(to_size(run_.plan.sparse_prefill->band));
  front_.whole = false;
}

/// Returns how many tokens of the front need not run. The last one of the prompt runs, as the
/// answer begins with its logits, and so do the rows that compressor and retriever observe.
std::int64_t SharedFront::most_tokens() const {
  const auto front = count_of(front_.token_ids), question = count_of(run_.request.suffix_ids);
  // Pages hold no hidden states of their tokens.
  if (run_.head_track && run_.head_track->input() == HeadInput::kFeature) return 0;
  if (run_.sparse_prefill()) {
    const std::int64_t unseen = !run_.queries ? front
                                : run_.queries->needs_whole_prompt()
                                    ? 0
                                    : run_.plan.prompt_tokens - run_.queries->wanted().count;
    return std::clamp<std::int64_t>(unseen, 0, front_.whole ? front - 1 : front);
  }
  std::int64_t most = front;
  // A prompt without a question ends with a document.
  if (front_.whole)
    most -= run_.compressor->observer() == nullptr ? 1 : std::max<std::int64_t>(question, 1);
  if (run_.compressor->observer() != nullptr && run_.compressor->observes_prompt()) return 0;
  if (!run_.queries) return most;
  // The retriever's input must not depend on what other requests have left.
  if (run_.queries->needs_whole_prompt()) return 0;
  return std::clamp<std::int64_t>(
      front - run_.queries->wanted().count + (front_.whole ? 0 : question), 0, most);
}

Result<std::int64_t> SharedFront::take() {
  PrefixCache* prefixes = run_.core.prefixes;
  if (prefixes == nullptr || run_.plan.strategy_asked == "recompute") return std::int64_t{0};
  const std::int64_t most = most_tokens();
  if (most == 0) return std::int64_t{0};
  const std::int64_t taken = prefixes->take(seed_, front_.token_ids, most, *run_.cache);
  run_.execution.shared_tokens = run_.stats.shared_tokens = taken;
  if (run_.head_track) {
    std::vector<std::int32_t> positions(to_size(taken));
    std::iota(positions.begin(), positions.end(), 0);
    QUIRE_RETURN_IF_ERROR(run_.head_track->add_computed(
        std::span(front_.token_ids).first(positions.size()), positions));
  }
  return taken;
}

void SharedFront::add_answered(std::int32_t token_id) {
  // From the first row that attended to only a part of the context, the answer's rows are not
  // shared.
  if (front_.whole && run_.retriever->stats().sparse_steps == 0)
    front_.token_ids.push_back(token_id);
}

void SharedFront::keep() {
  const auto& compression = run_.plan.compression;
  if (run_.core.prefixes == nullptr || (compression && compression->dropped)) return;
  // What documents say goes with them: a prompt over documents is not kept on disk. What stands
  // before documents whose KV is stored is the same in every such prompt.
  const bool documents = !run_.request.contexts.empty();
  run_.core.prefixes->add(
      seed_, front_.token_ids, *run_.cache, !documents,
      documents && !front_.whole ? PrefixCache::Ending::kKeep : PrefixCache::Ending::kDrop);
}

}  // namespace quire
