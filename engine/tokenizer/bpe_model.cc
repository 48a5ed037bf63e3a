#include "engine/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <unordered_map>

namespace quire::tokenizer_internal {
namespace {

constexpr std::uint32_t kNoRank = ~std::uint32_t{0};
constexpr std::size_t kShortWord = 40;  // below it scanning beats a heap

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::uint64_t hash_of(std::uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15ULL;
  return pair ^ pair >> 32;
}

/// Two symbols side by side that may be merged.
struct Candidate {
  std::uint32_t at;  // index of the left symbol
  std::int32_t left, right, to;
  bool operator>(const Candidate& other) const { return at > other.at; }
};

/// Candidates by rank, and of one rank from left to right. Those of one rank come from left to
/// right nearly always (a run of one character has no others), so that they need no heap.
class MergeQueue {
 public:
  bool empty() const { return ranks_.empty(); }

  void push(std::uint32_t rank, const Candidate& candidate) {
    if (last_ == nullptr || rank != last_rank_) {
      last_ = &of_rank_[rank];  // a node: it stays where it is
      last_rank_ = rank;
    }
    if (last_->empty()) ranks_.push(rank);
    last_->push(candidate);
  }

  /// The queue must not be empty.
  Candidate pop() {
    const std::uint32_t rank = ranks_.top();
    if (first_ == nullptr || rank != first_rank_) {
      first_ = &of_rank_[rank];
      first_rank_ = rank;
    }
    const Candidate candidate = first_->pop();
    if (first_->empty()) ranks_.pop();
    return candidate;
  }

 private:
  class OfRank {
   public:
    bool empty() const { return head_ == in_order_.size() && others_.empty(); }
    void push(const Candidate& c) {
      if (head_ == in_order_.size()) {
        in_order_.clear();
        head_ = 0;
      }
      if (in_order_.empty() || c.at >= in_order_.back().at) {
        in_order_.push_back(c);
      } else {
        others_.push(c);
      }
    }
    Candidate pop() {
      if (head_ == in_order_.size() || (!others_.empty() && in_order_[head_] > others_.top())) {
        const Candidate c = others_.top();
        others_.pop();
        return c;
      }
      return in_order_[head_++];
    }

   private:
    std::vector<Candidate> in_order_;  // from head_ on
    std::size_t head_ = 0;
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> others_;
  };

  /// The ranks that have candidates, each once.
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ranks_;
  std::unordered_map<std::uint32_t, OfRank> of_rank_;
  OfRank *last_ = nullptr, *first_ = nullptr;
  std::uint32_t last_rank_ = 0, first_rank_ = 0;
};

}  // namespace

BpeModel::BpeModel(std::span<const Merge> merges) {
  slots_.resize(std::bit_ceil(std::max<std::size_t>(2 * merges.size(), 16)));
  mask_ = slots_.size() - 1;
  for (const Merge& m : merges) {
    const std::uint64_t pair = pair_of(m.left, m.right);
    std::uint64_t at = hash_of(pair) & mask_;
    while (slots_[at].pair != kEmpty && slots_[at].pair != pair) at = (at + 1) & mask_;
    if (slots_[at].pair == kEmpty) slots_[at] = Slot{pair, m.rank, m.to};
  }
}

const BpeModel::Slot* BpeModel::find(std::int32_t left, std::int32_t right) const {
  if (left < 0 || right < 0 || slots_.empty()) return nullptr;
  const std::uint64_t pair = pair_of(left, right);
  for (std::uint64_t at = hash_of(pair) & mask_;; at = (at + 1) & mask_) {
    if (slots_[at].pair == pair) return &slots_[at];
    if (slots_[at].pair == kEmpty) return nullptr;
  }
}

void BpeModel::merge(std::vector<Symbol>& word) const {
  if (word.size() < 2) return;
  if (word.size() <= kShortWord) {
    merge_short(word);
  } else {
    merge_long(word);
  }
}

void BpeModel::merge_short(std::vector<Symbol>& word) const {
  const Slot* next[kShortWord] = {};  // next[i]: the merge of word[i] and word[i + 1]
  for (std::size_t i = 0; i + 1 < word.size(); ++i) next[i] = find(word[i].id, word[i + 1].id);
  for (;;) {
    std::uint32_t best_rank = kNoRank;
    std::size_t best = 0;
    for (std::size_t i = 0; i + 1 < word.size(); ++i) {
      if (next[i] != nullptr && next[i]->rank < best_rank) {
        best_rank = next[i]->rank;
        best = i;
      }
    }
    if (best_rank == kNoRank) return;
    word[best] = Symbol{next[best]->to, word[best].num_bytes + word[best + 1].num_bytes};
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    for (std::size_t i = best + 1; i + 1 < word.size(); ++i) next[i] = next[i + 1];
    if (best > 0) next[best - 1] = find(word[best - 1].id, word[best].id);
    next[best] = best + 1 < word.size() ? find(word[best].id, word[best + 1].id) : nullptr;
  }
}

void BpeModel::merge_long(std::vector<Symbol>& word) const {
  const auto size = static_cast<std::uint32_t>(word.size());
  std::vector<std::uint32_t> next(size), previous(size);
  MergeQueue queue;
  const auto offer = [&](std::uint32_t left, std::uint32_t right) {
    if (const Slot* slot = find(word[left].id, word[right].id))
      queue.push(slot->rank, {left, word[left].id, word[right].id, slot->to});
  };
  for (std::uint32_t i = 0; i < size; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // of the first: kNoRank, never followed
    if (i + 1 < size) offer(i, i + 1);
  }
  while (!queue.empty()) {
    const Candidate c = queue.pop();
    const std::uint32_t right = word[c.at].id == c.left ? next[c.at] : size;
    // One of the two has been merged since
    if (right >= size || word[right].id != c.right) continue;
    word[c.at] = Symbol{c.to, word[c.at].num_bytes + word[right].num_bytes};
    word[right].id = -2;  // gone; matches nothing, also where -1 stands for an unknown symbol
    next[c.at] = next[right];
    if (next[right] < size) {
      previous[next[right]] = c.at;
      offer(c.at, next[c.at]);
    }
    if (c.at != 0) offer(previous[c.at], c.at);
  }
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < size; i = next[i]) word[kept++] = word[i];
  word.resize(kept);
}

}  // namespace quire::tokenizer_internal
