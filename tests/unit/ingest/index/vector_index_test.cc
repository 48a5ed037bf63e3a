#include "ingest/index/vector_index.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "base/dtype.h"
#include "tests/support/engine_harness.h"
#include "tests/support/scratch_files.h"

namespace quire {
namespace {

constexpr std::int64_t kDimension = 24;

/// Returns vectors of length 1 around `centres` directions, exact in f16.
std::vector<float> clustered(std::int64_t n, std::int64_t centres, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> middle(static_cast<std::size_t>(centres * kDimension)), out;
  for (float& x : middle) x = normal(random);
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<float> v(kDimension);
    double squares = 0;
    for (std::int64_t c = 0; c < kDimension; ++c) {
      v[static_cast<std::size_t>(c)] =
          middle[static_cast<std::size_t>(i % centres * kDimension + c)] + 0.3f * normal(random);
      squares += v[static_cast<std::size_t>(c)] * v[static_cast<std::size_t>(c)];
    }
    for (const float x : v)
      out.push_back(f16_to_f32(f32_to_f16(static_cast<float>(x / std::sqrt(squares)))));
  }
  return out;
}

std::span<const float> row(const std::vector<float>& vectors, std::int64_t i) {
  return std::span(vectors).subspan(static_cast<std::size_t>(i * kDimension), kDimension);
}

std::vector<std::uint16_t> as_f16(const std::vector<float>& vectors) {
  std::vector<std::uint16_t> out;
  for (const float x : vectors) out.push_back(f32_to_f16(x));
  return out;
}

VectorIndex filled(const std::vector<float>& vectors) {
  auto index = VectorIndex::make(kDimension);
  EXPECT_TRUE(index.ok());
  std::vector<std::int64_t> labels(vectors.size() / kDimension);
  std::iota(labels.begin(), labels.end(), 0);
  EXPECT_TRUE(index->add(labels, as_f16(vectors)).ok());
  return std::move(*index);
}

Result<VectorIndex> in_lists(VectorIndex index, std::int64_t num_lists) {
  QUIRE_ASSIGN_OR_RETURN(const auto plan, index.plan_lists(num_lists));
  index.regroup(*plan);
  return index;
}

/// Computes the meaning of a search by comparing every vector.
std::vector<std::int64_t> nearest(const std::vector<float>& vectors, std::span<const float> query,
                                  std::size_t k, const VectorIndex::Filter& filter = {}) {
  std::vector<std::pair<float, std::int64_t>> all;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(vectors.size()) / kDimension; ++i) {
    if (filter && !filter(i)) continue;
    const auto v = row(vectors, i);
    all.emplace_back(-std::inner_product(v.begin(), v.end(), query.begin(), 0.0f), i);
  }
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < std::min(k, all.size()); ++i) out.push_back(all[i].second);
  return out;
}

std::vector<std::int64_t> labels_of(const Result<VectorIndex::Found>& found) {
  EXPECT_TRUE(found.ok()) << found.status().to_string();
  std::vector<std::int64_t> out;
  if (found.ok()) {
    EXPECT_TRUE(found->unreadable.empty());
    for (const VectorMatch& m : found->matches) out.push_back(m.label);
  }
  return out;
}

TEST(VectorIndexTest, OneListComparesEveryVector) {
  const auto vectors = clustered(300, 7, 1), queries = clustered(20, 20, 2);
  const VectorIndex index = filled(vectors);
  EXPECT_EQ(index.size(), 300);
  EXPECT_EQ(index.num_lists(), 1);
  EXPECT_EQ(index.dimension(), kDimension);
  for (std::int64_t q = 0; q < 20; ++q)
    EXPECT_EQ(labels_of(index.search(row(queries, q), 10)), nearest(vectors, row(queries, q), 10));
  const auto self = index.search(row(vectors, 42), 1);
  ASSERT_EQ(labels_of(self), std::vector<std::int64_t>{42});
  const auto v = row(vectors, 42);
  EXPECT_NEAR(self->matches.front().score, std::inner_product(v.begin(), v.end(), v.begin(), 0.0f),
              1e-5);
}

TEST(VectorIndexTest, ASmallOrEmptyIndexGivesWhatItHas) {
  auto index = VectorIndex::make(kDimension);
  ASSERT_TRUE(index.ok());
  const auto vectors = clustered(3, 3, 3);
  EXPECT_TRUE(labels_of(index->search(row(vectors, 0), 5)).empty());
  EXPECT_TRUE(index->remove(std::vector<std::int64_t>{1, 2}).ok());
  ASSERT_TRUE(index->add(std::vector<std::int64_t>{7, 8, 9}, as_f16(vectors)).ok());
  EXPECT_EQ(labels_of(index->search(row(vectors, 1), 50)).size(), 3u);
  EXPECT_TRUE(labels_of(index->search(row(vectors, 1), 0)).empty());
  const auto copy = in_lists(std::move(*index), 100);
  ASSERT_TRUE(copy.ok());
  EXPECT_EQ(copy->size(), 3);
  EXPECT_EQ(labels_of(copy->search(row(vectors, 1), 3)).size(), 3u);
}

TEST(VectorIndexTest, WhatIsRemovedIsGoneAndTheRestStays) {
  const auto vectors = clustered(200, 5, 4);
  for (const std::int64_t lists : {1, 14}) {
    auto index = in_lists(filled(vectors), lists);
    ASSERT_TRUE(index.ok());
    std::vector<std::int64_t> odd;
    for (std::int64_t i = 1; i < 200; i += 2) odd.push_back(i);
    ASSERT_TRUE(index->remove(odd).ok());
    EXPECT_EQ(index->size(), 100);
    const auto even = [](std::int64_t label) { return label % 2 == 0; };
    EXPECT_EQ(labels_of(index->search(row(vectors, 31), 20, even)),
              nearest(vectors, row(vectors, 31), 20, even))
        << lists;
  }
}

TEST(VectorIndexTest, AFilteredSearchIsExactInAnyNumberOfLists) {
  const auto vectors = clustered(2000, 11, 5), queries = clustered(10, 10, 6);
  const auto index = in_lists(filled(vectors), 44);
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->num_lists(), 44);
  const std::set<std::int64_t> wanted{3, 5, 900, 1500, 1501, 1999};
  const auto filter = [&](std::int64_t label) { return wanted.contains(label); };
  for (std::int64_t q = 0; q < 10; ++q)
    EXPECT_EQ(labels_of(index->search(row(queries, q), 4, filter)),
              nearest(vectors, row(queries, q), 4, filter));
}

TEST(VectorIndexTest, ListsFindMostOfWhatIsNear) {
  // So many that a search does not read all lists.
  const auto vectors = clustered(80'000, 800, 7);
  const auto index = in_lists(filled(vectors), 280);
  ASSERT_TRUE(index.ok());
  std::int64_t found = 0, wanted = 0;
  for (std::int64_t q = 0; q < 80'000; q += 800) {
    const auto near = nearest(vectors, row(vectors, q), 10);
    const auto got = labels_of(index->search(row(vectors, q), 10));
    EXPECT_EQ(got.size(), 10u);
    EXPECT_TRUE(std::find(got.begin(), got.end(), q) != got.end())
        << "a vector does not find itself";
    for (const std::int64_t label : near) found += std::count(got.begin(), got.end(), label);
    wanted += 10;
  }
  EXPECT_GE(found, wanted * 9 / 10);
}

TEST(VectorIndexTest, VectorsMayBeAddedToLists) {
  const auto vectors = clustered(1000, 9, 8), more = clustered(50, 9, 9);
  auto index = in_lists(filled(vectors), 31);
  ASSERT_TRUE(index.ok());
  std::vector<std::int64_t> labels(50);
  std::iota(labels.begin(), labels.end(), 5000);
  ASSERT_TRUE(index->add(labels, as_f16(more)).ok());
  EXPECT_EQ(index->size(), 1050);
  for (std::int64_t i = 0; i < 50; ++i)
    EXPECT_EQ(labels_of(index->search(row(more, i), 1)), std::vector<std::int64_t>{5000 + i});
}

TEST(VectorIndexTest, AnIndexMayBeginWithTheListsOfAnother) {
  const auto vectors = clustered(1000, 9, 8);
  const auto made = in_lists(filled(vectors), 31);
  ASSERT_TRUE(made.ok());
  const auto centres = made->centres();
  ASSERT_EQ(centres.size(), static_cast<std::size_t>(31 * kDimension));
  auto index = VectorIndex::make(kDimension, centres);
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->num_lists(), 31);
  EXPECT_TRUE(labels_of(index->search(row(vectors, 0), 3)).empty());
  std::vector<std::int64_t> labels(1000);
  std::iota(labels.begin(), labels.end(), 0);
  // In pieces of any size, some of which are compared with the centres one by one.
  const auto values = as_f16(vectors);
  for (std::size_t first = 0, n = 1; first < 1000; first += n, n = n % 7 + 1) {
    n = std::min<std::size_t>(n, 1000 - first);
    ASSERT_TRUE(index
                    ->add(std::span(labels).subspan(first, n),
                          std::span(values).subspan(first * kDimension, n * kDimension))
                    .ok());
  }
  for (std::int64_t i = 0; i < 1000; i += 17)
    EXPECT_EQ(labels_of(index->search(row(vectors, i), 1)), std::vector<std::int64_t>{i});
  EXPECT_TRUE(filled(vectors).centres().empty());
}

TEST(VectorIndexTest, CentresThatAreNoNumbersAreRefused) {
  std::vector<std::uint16_t> centres(5 * kDimension, f32_to_f16(0.2f));
  EXPECT_TRUE(VectorIndex::make(kDimension, centres).ok());
  centres[30] = f32_to_f16(std::nanf(""));
  EXPECT_EQ(VectorIndex::make(kDimension, centres).code(), Code::kCorruption);
}

void expect_same_results(const VectorIndex& a, const VectorIndex& b,
                         const std::vector<float>& queries, const VectorIndex::Filter& filter) {
  for (std::int64_t q = 0; q < static_cast<std::int64_t>(queries.size()) / kDimension; ++q) {
    const auto from_a = a.search(row(queries, q), 25, filter),
               from_b = b.search(row(queries, q), 25, filter);
    ASSERT_EQ(labels_of(from_a), labels_of(from_b));
    for (std::size_t i = 0; i < from_a->matches.size(); ++i)
      EXPECT_EQ(from_a->matches[i].score, from_b->matches[i].score);
  }
}

TEST(VectorIndexTest, VectorsOnDiskGiveTheResultsOfThoseInMemory) {
  const testing::TempFolder folder;
  const auto vectors = clustered(900, 13, 10), more = clustered(200, 13, 11),
             queries = clustered(30, 13, 12);
  std::vector<std::int64_t> added(200), removed;
  std::iota(added.begin(), added.end(), 900);
  for (std::int64_t i = 0; i < 1000; i += 3) removed.push_back(i);
  const VectorIndex::Filter every = {}, some = [](std::int64_t label) { return label % 5 == 1; };
  for (const std::int64_t lists : {1, 60}) {
    for (const std::int64_t moved : {400, 900}) {
      auto memory = in_lists(filled(vectors), lists), disk = in_lists(filled(vectors), lists);
      ASSERT_TRUE(memory.ok() && disk.ok());
      const std::int64_t vector_bytes = kDimension * 4, before = disk->memory_bytes();
      ASSERT_TRUE(disk->move_to_disk(folder.path().string(), moved * vector_bytes, 1 << 30).ok());
      EXPECT_EQ(disk->memory_bytes(), before - moved * vector_bytes);
      EXPECT_EQ(disk->movable_bytes(), (900 - moved) * vector_bytes);
      EXPECT_GT(disk->disk_bytes(), moved * vector_bytes / 2);
      EXPECT_EQ(memory->disk_bytes(), 0);
      const auto compare = [&] {
        EXPECT_EQ(disk->size(), memory->size());
        expect_same_results(*memory, *disk, queries, every);
        expect_same_results(*memory, *disk, queries, some);
      };
      compare();
      for (VectorIndex* index : {&*memory, &*disk}) {
        ASSERT_TRUE(index->add(added, as_f16(more)).ok());
        ASSERT_TRUE(index->remove(removed).ok());
      }
      compare();
      memory = in_lists(std::move(*memory), 20);
      disk = in_lists(std::move(*disk), 20);
      ASSERT_TRUE(memory.ok() && disk.ok());
      compare();
    }
  }
}

TEST(VectorIndexTest, RemovedVectorsGiveTheirRoomOnDiskBack) {
  const testing::TempFolder folder;
  const auto vectors = clustered(2000, 7, 13);
  auto index = in_lists(filled(vectors), 10);
  ASSERT_TRUE(index.ok());
  ASSERT_TRUE(index->move_to_disk(folder.path().string(), 1 << 30, 1 << 30).ok());
  const std::int64_t whole = index->disk_bytes();
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < 2000; ++i) {
    if (i % 10 != 0) labels.push_back(i);
  }
  for (std::size_t at = 0; at < labels.size(); at += 100)
    ASSERT_TRUE(index->remove(std::span(labels).subspan(at, 100)).ok());
  EXPECT_LE(index->disk_bytes(), whole / 4);
  const auto left = [](std::int64_t label) { return label % 10 == 0; };
  EXPECT_EQ(labels_of(index->search(row(vectors, 31), 20, left)),
            nearest(vectors, row(vectors, 31), 20, left));
  labels.clear();
  for (std::int64_t i = 0; i < 2000; i += 10) labels.push_back(i);
  ASSERT_TRUE(index->remove(labels).ok());
  EXPECT_EQ(index->disk_bytes(), 0);
  EXPECT_TRUE(testing::scratch_files(folder.path()).empty());
}

TEST(VectorIndexTest, WhatHasNoRoomOnDiskStaysInMemory) {
  const testing::TempFolder folder;
  const auto vectors = clustered(300, 7, 14), queries = clustered(10, 7, 15);
  VectorIndex index = filled(vectors);
  EXPECT_EQ(index.move_to_disk(folder.path().string(), 1 << 30, 3000).code(),
            Code::kResourceExhausted);
  EXPECT_GT(index.disk_bytes(), 2000);
  EXPECT_LE(index.disk_bytes(), 3000);
  EXPECT_EQ(index.move_to_disk(folder.path().string(), 1, 0).code(), Code::kResourceExhausted);
  for (std::int64_t q = 0; q < 10; ++q)
    EXPECT_EQ(labels_of(index.search(row(queries, q), 20)), nearest(vectors, row(queries, q), 20));
  EXPECT_EQ(filled(vectors).move_to_disk("/nonexistent", 1 << 30, 1 << 30).code(), Code::kIo);
}

TEST(VectorIndexTest, VectorsThatCannotBeReadAreNamedAndTheRestIsFound) {
  const testing::TempFolder folder;
  const auto vectors = clustered(300, 7, 16);
  VectorIndex index = filled(vectors);
  ASSERT_TRUE(index.move_to_disk(folder.path().string(), 1 << 30, 1 << 30).ok());
  const auto files = testing::scratch_files(folder.path());
  ASSERT_EQ(files.size(), 1u);
  // The last hundred are lost, which lie at the end.
  ASSERT_EQ(::truncate(files[0].c_str(), index.disk_bytes() * 2 / 3), 0);
  const auto found = index.search(row(vectors, 250), 300);
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->matches.size(), 200u);
  std::vector<std::int64_t> lost(100);
  std::iota(lost.begin(), lost.end(), 200);
  EXPECT_EQ(found->unreadable, lost);
  const auto kept = [](std::int64_t label) { return label < 200; };
  EXPECT_EQ(labels_of(index.search(row(vectors, 250), 10, kept)),
            nearest(vectors, row(vectors, 250), 10, kept));
  // Lists can be made of what is left.
  const auto lists = in_lists(std::move(index), 10);
  ASSERT_TRUE(lists.ok());
  EXPECT_EQ(
      lists->search(row(vectors, 250), 300, [](std::int64_t) { return true; })->matches.size(),
      200u);
}

}  // namespace
}  // namespace quire
