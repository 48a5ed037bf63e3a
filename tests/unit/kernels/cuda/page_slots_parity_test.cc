// Plain loops and CUDA (emulated) fill the same slots over many steps: what slots hold, the rows in
// them, the lists of rows and the counts.
#include "kernels/cuda/choice/page_slots.cuh"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

struct Case {
  std::string name;
  std::vector<std::int64_t> rows;  ///< of each sequence before the first step
  std::int32_t kv_heads, dim;
  DType dtype;
  TestLayout cache, slots;
  std::int32_t unit, first, selected, unseen;  ///< unseen: most units without a choice
  int steps;
};

const Case kCases[] = {
    {"pages of the working cache",
     {150, 203},
     2,
     128,
     DType::kBF16,
     TestLayout::kHeadPages,
     TestLayout::kHeadPages,
     16,
     1,
     4,
     3,
     20},
    {"odd units, other layouts",
     {61, 99, 80},
     3,
     24,
     DType::kF32,
     TestLayout::kTokenMajor,
     TestLayout::kGranules,
     5,
     2,
     3,
     2,
     12},
    {"no first unit, one head",
     {90},
     1,
     8,
     DType::kF16,
     TestLayout::kGranules,
     TestLayout::kHeadMajor,
     7,
     0,
     1,
     1,
     15},
    {"more slots than threads",
     {420, 333},
     2,
     16,
     DType::kF16,
     TestLayout::kHeadPages,
     TestLayout::kHeadPages,
     2,
     3,
     129,
     5,
     5},
    {"eight bits",
     {83, 120},
     2,
     48,
     DType::kF8,
     TestLayout::kHeadPages,
     TestLayout::kGranules,
     6,
     1,
     3,
     2,
     9},
};

/// Rows cut into units of c.unit, the second one of which is shorter.
std::vector<RowRange> units_of(const Case& c, std::int64_t rows) {
  std::vector<RowRange> units;
  for (std::int64_t begin = 0; begin < rows;) {
    const std::int64_t end = std::min(rows, begin + c.unit - (units.size() == 1 ? 1 : 0));
    units.push_back({begin, end});
    begin = end;
  }
  return units;
}

/// What a head chose, for a step and for the next one.
struct Chosen {
  PageHead state{};
  std::vector<std::int32_t> units[2];
};

/// The slots of a sequence, by plain loops.
class HostSlots {
 public:
  HostSlots(const Case& c, std::int32_t num_slots, PagedKv& memory)
      : c_(c),
        slots_(static_cast<std::size_t>(c.kv_heads * num_slots), PageSlot{-1, 0}),
        counts_(static_cast<std::size_t>(c.kv_heads)),
        num_slots_(static_cast<std::size_t>(num_slots)),
        memory_(memory) {}

  /// Returns the rows of the slots that the head attends to.
  std::vector<std::int32_t> fill(std::size_t m, const Chosen& chosen, bool coming,
                                 const std::vector<RowRange>& units, PagedKv& cache) {
    const std::size_t which = static_cast<std::size_t>(chosen.state.current ^ (coming ? 1 : 0));
    std::vector<std::int32_t> wanted(static_cast<std::size_t>(c_.first));
    std::iota(wanted.begin(), wanted.end(), 0);
    for (const std::int32_t unit : chosen.units[which]) wanted.push_back(c_.first + unit);
    for (auto unit = static_cast<std::size_t>(chosen.state.seen[which]); unit < units.size();
         ++unit)
      wanted.push_back(static_cast<std::int32_t>(unit));
    PageSlot* const slots = slots_.data() + m * num_slots_;
    const auto is_wanted = [&](const PageSlot& slot) {
      return std::ranges::find(wanted, slot.unit) != wanted.end();
    };
    for (std::size_t i = 0; i < num_slots_; ++i) {
      if (!is_wanted(slots[i])) slots[i] = {-1, 0};
    }
    SlotCounts& counts = counts_[m];
    if (!coming) counts.wanted += static_cast<std::int64_t>(wanted.size());
    std::vector<std::int32_t> rows;
    for (const std::int32_t unit : wanted) {
      const auto holds = [&](std::int32_t held) {
        return std::find_if(slots, slots + num_slots_,
                            [&](const PageSlot& slot) { return slot.unit == held; }) -
               slots;
      };
      auto slot = static_cast<std::size_t>(holds(unit));
      if (slot == num_slots_) {
        slot = static_cast<std::size_t>(holds(-1));
        ++counts.copied;
      }
      const RowRange& range = units[static_cast<std::size_t>(unit)];
      const auto length = static_cast<std::int32_t>(range.end - range.begin);
      const std::int32_t held = slots[slot].unit == unit ? slots[slot].rows : 0;
      (held == 0 ? counts.rows : counts.appended) += length - held;
      for (std::int32_t row = 0; row < length; ++row) {
        const std::int32_t to = static_cast<std::int32_t>(slot) * c_.unit + row;
        rows.push_back(to);
        for (int part = 0; row >= held && part < 2; ++part)
          std::memcpy(memory_.row(to, part, static_cast<std::int32_t>(m)),
                      cache.row(range.begin + row, part, static_cast<std::int32_t>(m)),
                      static_cast<std::size_t>(c_.dim) * dtype_bytes(c_.dtype));
      }
      slots[slot] = {unit, length};
    }
    return rows;
  }
  const std::vector<PageSlot>& slots() const { return slots_; }
  const std::vector<SlotCounts>& counts() const { return counts_; }

 private:
  const Case& c_;
  std::vector<PageSlot> slots_;
  std::vector<SlotCounts> counts_;
  const std::size_t num_slots_;
  PagedKv& memory_;
};

/// One sequence: its cache, its slots by plain loops, and those of the device.
struct Sequence {
  Sequence(const Case& c, std::int32_t num_slots, std::int64_t rows, std::uint32_t seed)
      : cache(rows + c.steps, c.kv_heads, c.dim, c.dtype, c.cache, seed),
        expected(num_slots * c.unit, c.kv_heads, c.dim, c.dtype, c.slots, 3),
        cuda(num_slots * c.unit, c.kv_heads, c.dim, c.dtype, c.slots, 3),
        host(c, num_slots, expected) {}
  PagedKv cache, expected, cuda;
  HostSlots host;
  MutableKvView there{};
  SlotSequence s{};
};

class PageSlots {
 public:
  explicit PageSlots(const Case& c) : c_(c) {
    for (std::size_t i = 0; i < c.rows.size(); ++i)
      sequences_.push_back(
          std::make_unique<Sequence>(c, num_slots_, c.rows[i], 11 + static_cast<std::uint32_t>(i)));
    for (const auto& one : sequences_) start(*one);
  }

  void run() {
    std::vector<std::vector<Chosen>> chosen(sequences_.size());
    for (int step = 0; step < c_.steps; ++step) {
      SCOPED_TRACE(c_.name + ", step " + std::to_string(step));
      std::vector<SlotSequence> there;
      std::vector<std::vector<RowRange>> units;
      for (std::size_t i = 0; i < sequences_.size(); ++i) {
        units.push_back(units_of(c_, c_.rows[i] + step + 1));
        choose(chosen[i], static_cast<std::int32_t>(units[i].size()));
        there.push_back(at_step(*sequences_[i], chosen[i], units[i]));
      }
      FillSlotsArgs args = arguments();
      args.sequences = device_.upload(there, "sequences");
      std::vector<std::vector<std::int32_t>> rows;
      for (const bool coming : {false, true}) {
        args.coming = coming;
        auto launcher = device_.launcher();
        ASSERT_OK(launch_fill_slots(launcher, args));
        for (std::size_t i = 0; i < sequences_.size(); ++i) {
          for (std::size_t m = 0; m < chosen[i].size(); ++m) {
            if (coming && chosen[i][m].state.coming == 0) continue;
            auto listed = sequences_[i]->host.fill(m, chosen[i][m], coming, units[i],
                                                   sequences_[i]->cache);
            if (!coming) rows.push_back(std::move(listed));
          }
          expect_same(*sequences_[i], rows, i);
        }
      }
      if (step == 0) expect_refusals(args);
    }
    std::int64_t appended = 0, copied = 0;
    for (const auto& one : sequences_) {
      for (const SlotCounts& counts : one->host.counts()) {
        appended += counts.appended;
        copied += counts.copied;
      }
    }
    EXPECT_GT(appended, 0);
    EXPECT_GT(copied, 0);
  }

 private:
  std::int64_t most_rows() const { return std::int64_t{num_slots_} * c_.unit; }

  void start(Sequence& one) {
    const auto heads = static_cast<std::size_t>(c_.kv_heads);
    one.there = device_.attach(one.cuda.mutable_view());
    one.s.kv_pages = device_.upload(one.cache.view(true)).pages;
    one.s.slot_pages = one.there.pages;
    one.s.rows = device_.output(
        std::vector<std::int32_t>(heads * static_cast<std::size_t>(most_rows()), -1), "rows");
    one.s.lists = device_.output(std::vector<RowList>(heads), "lists");
    one.s.slots = device_.output(one.host.slots(), "slots");
    one.s.counts = device_.output(one.host.counts(), "counts");
  }
  /// Every head goes on to what comes; some then choose anew for this step, some for the next one.
  void choose(std::vector<Chosen>& heads, std::int32_t units) {
    const bool first = heads.empty();
    heads.resize(static_cast<std::size_t>(c_.kv_heads));
    for (Chosen& head : heads) {
      PageHead& state = head.state;
      state.current ^= state.coming;
      state.coming = 0;
      const bool now = first || units - state.seen[state.current] > c_.unseen || random_() % 3 == 0;
      if (!now && random_() % 2 == 0) continue;
      const std::int32_t other = state.current ^ 1,
                         last = std::max(c_.first + c_.selected,
                                         units - 1 -
                                             static_cast<std::int32_t>(
                                                 random_() % static_cast<unsigned>(c_.unseen)));
      std::vector<std::int32_t> all(static_cast<std::size_t>(last - c_.first)), picked;
      std::iota(all.begin(), all.end(), 0);
      std::sample(all.begin(), all.end(), std::back_inserter(picked), c_.selected, random_);
      head.units[other] = picked;
      state.seen[other] = last;
      (now ? state.current : state.coming) = now ? other : 1;
    }
  }
  SlotSequence at_step(const Sequence& one, const std::vector<Chosen>& heads,
                       const std::vector<RowRange>& units) {
    const auto size = static_cast<std::size_t>(c_.kv_heads * c_.selected);
    std::vector<std::int32_t> chosen(2 * size, -1);
    std::vector<PageHead> states;
    for (std::size_t m = 0; m < heads.size(); ++m) {
      states.push_back(heads[m].state);
      for (std::size_t which = 0; which < 2; ++which)
        std::ranges::copy(
            heads[m].units[which],
            chosen.begin() + static_cast<std::ptrdiff_t>(
                                 which * size + m * static_cast<std::size_t>(c_.selected)));
    }
    SlotSequence s = one.s;
    s.units = device_.upload(units, "units");
    s.num_units = static_cast<std::int32_t>(units.size());
    s.heads = device_.upload(states, "heads");
    s.chosen = device_.upload(chosen, "chosen");
    return s;
  }
  FillSlotsArgs arguments() {
    FillSlotsArgs a{};
    const std::size_t heads = sequences_.size() * static_cast<std::size_t>(c_.kv_heads);
    a.num_sequences = static_cast<std::int64_t>(sequences_.size());
    a.cache = sequences_.front()->cache.view(true);
    a.slots = sequences_.front()->cuda.mutable_view();
    a.cache.pages = nullptr;
    a.slots.pages = nullptr;
    a.num_first = c_.first;
    a.selected = c_.selected;
    a.num_slots = num_slots_;
    a.unit_rows = c_.unit;
    a.most_rows = most_rows();
    a.moves = device_.output(
        std::vector<KvMove>(heads * static_cast<std::size_t>(num_slots_), {99, 1 << 30, -1, 5}),
        "moves");
    a.num_moves = device_.output(std::vector<std::int32_t>(heads, 1 << 30), "num_moves");
    return a;
  }
  void expect_same(Sequence& one, const std::vector<std::vector<std::int32_t>>& listed,
                   std::size_t index) {
    const auto heads = static_cast<std::size_t>(c_.kv_heads);
    EXPECT_EQ(device_.download(one.s.slots, c_.kv_heads * num_slots_), one.host.slots());
    device_.bring_back(one.there, one.cuda.mutable_view());
    EXPECT_EQ(one.cuda.memory(), one.expected.memory());
    const auto lists = device_.download(one.s.lists, c_.kv_heads);
    const auto rows = device_.download(one.s.rows, c_.kv_heads * most_rows());
    const auto counts = device_.download(one.s.counts, c_.kv_heads);
    for (std::size_t m = 0; m < heads; ++m) {
      const std::int64_t at = static_cast<std::int64_t>(m) * most_rows();
      EXPECT_EQ(lists[m].rows, one.s.rows + at);
      EXPECT_EQ(std::vector<std::int32_t>(rows.begin() + at, rows.begin() + at + lists[m].length),
                listed[index * heads + m])
          << "sequence " << index << ", head " << m;
      const SlotCounts& expected = one.host.counts()[m];
      EXPECT_EQ(counts[m].wanted, expected.wanted);
      EXPECT_EQ(counts[m].copied, expected.copied);
      EXPECT_EQ(counts[m].rows, expected.rows);
      EXPECT_EQ(counts[m].appended, expected.appended);
    }
  }
  void expect_refusals(const FillSlotsArgs& args) {
    const auto field_of = [&](auto edit) {
      FillSlotsArgs bad = args;
      edit(bad);
      auto launcher = device_.launcher();
      return launch_fill_slots(launcher, bad).field();
    };
    EXPECT_EQ(field_of([](FillSlotsArgs& a) { a.num_slots = a.num_first; }), "num_slots");
    EXPECT_EQ(field_of([](FillSlotsArgs& a) { a.num_slots = kMostSlots + 1; }), "num_slots");
    EXPECT_EQ(field_of([](FillSlotsArgs& a) { a.selected = 0; }), "selected");
    EXPECT_EQ(field_of([](FillSlotsArgs& a) { a.unit_rows = 0; }), "unit_rows");
    EXPECT_EQ(field_of([](FillSlotsArgs& a) { a.slots.dtype = DType::kI8; }), "dst.dtype");
    EXPECT_EQ(field_of([](FillSlotsArgs& a) { a.cache.token_stride = 8; }), "strides");
    EXPECT_EQ(field_of([](FillSlotsArgs& a) { a.num_sequences = 0; }), "");
  }

  const Case& c_;
  const std::int32_t num_slots_ = c_.first + c_.selected + c_.unseen + 1;
  TestDevice device_;
  std::mt19937 random_{5};
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST(CudaParity, SlotsFilledStepByStepForManySequences) {
  for (const Case& c : kCases) PageSlots(c).run();
}

}  // namespace
}  // namespace quire::cuda
