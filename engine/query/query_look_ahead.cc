#include "engine/query/query_look_ahead.h"

#include <algorithm>

#include "base/index.h"

namespace quire {
namespace {

/// Returns the prompt as the target sees it, each context once. `contexts` receives their ranges.
std::vector<std::int32_t> whole_prompt(const QueryRequest& request, const Plan& plan,
                                       std::vector<RowRange>& contexts) {
  std::vector<std::int32_t> ids = request.prefix_ids;
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    const auto begin = count_of(ids);
    if (!plan.contexts[i].duplicate)
      ids.insert(ids.end(), request.contexts[i].token_ids.begin(),
                 request.contexts[i].token_ids.end());
    contexts.push_back({begin, count_of(ids)});
  }
  ids.insert(ids.end(), request.suffix_ids.begin(), request.suffix_ids.end());
  return ids;
}

void add_range(std::vector<RowRange>& out, const RowRange& s) {
  if (s.end <= s.begin) return;
  if (!out.empty() && out.back().end == s.begin)
    out.back().end = s.end;
  else
    out.push_back(s);
}

/// Returns the blocks of documents that the draft reads, [context][block]; empty: all. If the
/// target's layers hold different blocks, these are the ones that most layers hold, as many tokens
/// as one layer holds on average.
std::vector<std::vector<std::uint8_t>> blocks_read(const Plan& plan) {
  struct Block {
    std::int32_t layers;
    std::size_t context, block;
  };
  std::vector<Block> held;
  std::vector<std::vector<std::uint8_t>> read;
  std::int64_t layer_tokens = 0;
  bool all = true;
  for (std::size_t i = 0; i < plan.contexts.size(); ++i) {
    const PlannedContext& c = plan.contexts[i];
    read.emplace_back(c.blocks.size());
    for (std::size_t b = 0; b < c.blocks.size() && !c.duplicate; ++b) {
      const std::int32_t layers = c.blocks[b].kept_layers;
      all = all && layers == plan.num_layers;
      layer_tokens += std::int64_t{layers} * c.blocks[b].num_tokens;
      if (layers > 0) held.push_back({layers, i, b});
    }
  }
  if (all) return {};
  std::stable_sort(held.begin(), held.end(),
                   [](const Block& x, const Block& y) { return x.layers > y.layers; });
  std::int64_t tokens = 0;
  for (const Block& h : held) {
    if (tokens * plan.num_layers >= layer_tokens) break;
    read[h.context][h.block] = 1;
    tokens += plan.contexts[h.context].blocks[h.block].num_tokens;
  }
  return read;
}

/// Returns the ranges of whole_prompt() that the target attends to, given the ranges of its
/// contexts. Empty: all of it.
std::vector<RowRange> attended(const Plan& plan, std::span<const RowRange> contexts,
                               std::int64_t prompt_tokens) {
  if (plan.selection_pending) return {};
  const auto read = blocks_read(plan);
  if (read.empty()) return {};
  std::vector<RowRange> out;
  add_range(out, {0, plan.prefix_tokens});
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const std::vector<PlannedBlock>& blocks = plan.contexts[i].blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const std::int64_t begin = contexts[i].begin + blocks[b].first_token;
      if (read[i][b]) add_range(out, {begin, begin + blocks[b].num_tokens});
    }
  }
  // Without a question the answer begins after the last document's last token.
  const std::int64_t question = std::min(prompt_tokens - plan.suffix_tokens, prompt_tokens - 1);
  if (!out.empty() && out.back().end > question) out.back().end = question;
  add_range(out, {question, prompt_tokens});
  return out;
}

constexpr const char* kNoDraft = "no draft model is loaded (model.draft_path)";
constexpr const char* kTooLate = "the draft took longer than model.draft_wait_ms";

}  // namespace

QueryLookAhead::QueryLookAhead(QueryResources& core, const QueryRequest& request, const Plan& plan,
                               const Wanted& wanted)
    : wants_tokens_(wanted.tokens > 0), patience_(core.draft_wait_ms), asked_(Clock::now()) {
  if (!wants_tokens_) synchronize(asked_, {});
  if (core.draft == nullptr) {
    if (wants_tokens_) synchronize(asked_, kNoDraft);
    scores_settled_ = true;
    score_reason_ = kNoDraft;
    return;
  }
  DraftRequest asked;
  asked.prompt_ids = whole_prompt(request, plan, contexts_);
  asked.max_tokens = wanted.tokens;
  asked.score_window = wanted.score_window;
  asked.tenant = request.tenant;
  asked.salt_digest = request.salt_digest;
  for (std::size_t i = 0; i < contexts_.size(); ++i) {
    if (request.contexts[i].key && contexts_[i].end > contexts_[i].begin)
      asked.documents.push_back(contexts_[i]);
  }
  if (wanted.score_window == 0) asked.kept = attended(plan, contexts_, count_of(asked.prompt_ids));
  asked.on_progress = [waker = core.waker] { waker->wake(); };
  answer_ = core.draft->ask(std::move(asked));
}

QueryLookAhead::QueryLookAhead(std::vector<std::int32_t> token_ids, double draft_ms)
    : wants_tokens_(true), patience_(0), asked_(Clock::now()), earlier_ms_(draft_ms) {
  answer_ = std::make_shared<LookAhead>();
  answer_->finish(std::move(token_ids), {});
  synchronize(asked_, {});
  scores_settled_ = true;
}

QueryLookAhead::~QueryLookAhead() { give_up(); }

/// Others may share the same look-ahead, so each gives it up at most once.
void QueryLookAhead::give_up() {
  if (answer_ && !given_up_) answer_->cancel();
  given_up_ = true;
}

void QueryLookAhead::synchronize(Clock::time_point now, std::string reason) {
  settled_ = true;
  settled_at_ = now;
  reason_ = std::move(reason);
}

bool QueryLookAhead::settled(Clock::time_point now) {
  if (settled_) return true;
  if (!waited_since_) waited_since_ = now;
  if (answer_->done()) {
    synchronize(now, answer_->reason());
  } else if (now - *waited_since_ >= patience_) {
    give_up();
    synchronize(now, kTooLate);
  }
  return settled_;
}

bool QueryLookAhead::scored(Clock::time_point now) {
  if (scores_settled_) return true;
  if (!waited_for_scores_since_) waited_for_scores_since_ = now;
  if (answer_->scored()) {
    scores_settled_ = true;
    if (answer_->scores().empty())
      score_reason_ = answer_->done() ? answer_->reason() : "the draft gave no scores";
  } else if (now - *waited_for_scores_since_ >= patience_) {
    scores_settled_ = true;
    score_reason_ = kTooLate;
  }
  if (scores_settled_ && !wants_tokens_) settled_at_ = now;
  return scores_settled_;
}

std::vector<std::span<const float>> QueryLookAhead::scores() const {
  if (!scores_settled_ || !score_reason_.empty() || !answer_) return {};
  const std::span<const float> all = answer_->scores();
  std::vector<std::span<const float>> out;
  for (const RowRange& c : contexts_) out.push_back(all.subspan(at(c.begin), at(c.end - c.begin)));
  return all.empty() ? std::vector<std::span<const float>>() : out;
}

std::span<const std::int32_t> QueryLookAhead::tokens(std::int64_t most) const {
  if (!wants_tokens_ || !settled_ || !reason_.empty()) return {};
  const std::span<const std::int32_t> ids = answer_->token_ids();
  return ids.first(std::min(ids.size(), to_size(std::max<std::int64_t>(0, most))));
}

}  // namespace quire
