// This file holds helpers compiled once per Highway target: loads and stores of every dtype as f32,
// and exp. Include it inside foreach_target files.
#if defined(QUIRE_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_SIMD_INL_H_
#undef QUIRE_KERNELS_CPU_SIMD_INL_H_
#else
#define QUIRE_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstdint>

#include "base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls f(tag, i) so that full vectors cover [0, n), then vectors of 8, then single elements.
template <class F>
HWY_INLINE void for_each_vector(std::int64_t n, F&& f) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(d, i);
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 8> d8;
  const auto lanes8 = static_cast<std::int64_t>(hn::Lanes(d8));
  if (lanes > lanes8) {
    for (; i + lanes8 <= n; i += lanes8) f(d8, i);
  }
  const hn::CappedTag<float, 1> d1;
  for (; i < n; ++i) f(d1, i);
#endif
}

// Tags of element types. A row of KV is read through one of them, so that the loop over it has no
// branches.
struct F32Tag {
  using Type = float;
};
struct F16Tag {
  using Type = std::uint16_t;
};
struct BF16Tag {
  using Type = std::uint16_t;
};
struct F8Tag {
  using Type = std::uint8_t;
};

template <class D>
HWY_INLINE hn::Vec<D> load_as_f32(D d, F32Tag, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_as_f32(D d, BF16Tag, const std::uint16_t* p) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}
template <class D>
HWY_INLINE hn::Vec<D> load_as_f32(D d, F16Tag, const std::uint16_t* p) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, f16_to_f32(*p));
#else
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#endif
}

template <class D>
HWY_INLINE hn::Vec<D> load_as_f32(D d, F8Tag, const std::uint8_t* p) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, e4m3_to_f32(*p));
#else
  const hn::Rebind<std::uint8_t, D> d8;
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> half;
  const auto codes = hn::PromoteTo(d16, hn::LoadU(d8, p)), lower = hn::Set(d16, 0x7f),
             low = hn::And(codes, lower);
  // In the place of an f16's exponent and fraction a value is 2^-8 times as large.
  const auto small = hn::Or(hn::ShiftLeft<8>(hn::AndNot(lower, codes)), hn::ShiftLeft<7>(low)),
             bits = hn::IfThenElse(hn::Eq(low, lower), hn::Set(d16, 0x7e00), small);
  return hn::Mul(hn::PromoteTo(d, hn::BitCast(half, bits)), hn::Set(d, 256.0f));
#endif
}

/// Rounds f32 lanes to bf16 (nearest even, NaN stays NaN) in the low half of each lane.
template <class D, class DU = hn::RebindToUnsigned<D>>
HWY_INLINE hn::Vec<DU> round_to_bf16(D d, hn::Vec<D> v) {
  const DU du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::Set(du, 0x7fffu), odd)));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  (void)d;
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
}

template <class D>
HWY_INLINE void store_from_f32(D d, F32Tag, hn::Vec<D> v, float* p) {
  hn::StoreU(v, d, p);
}
template <class D>
HWY_INLINE void store_from_f32(D d, BF16Tag, hn::Vec<D> v, std::uint16_t* p) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToSigned<D> di;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, round_to_bf16(d, v))), d16, p);
}
template <class D>
HWY_INLINE void store_from_f32(D d, F16Tag, hn::Vec<D> v, std::uint16_t* p) {
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  *p = f32_to_f16(hn::GetLane(v));
#else
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
#endif
}

template <class D>
HWY_INLINE void store_from_f32(D d, F8Tag, hn::Vec<D> v, std::uint8_t* p) {
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) p[i] = f32_to_e4m3(lanes[i]);
}

/// Calls f(tag) with the tag of a KV dtype (f32, f16, bf16 or f8).
template <class F>
HWY_INLINE void with_dtype(DType t, F&& f) {
  if (t == DType::kF32)
    f(F32Tag{});
  else if (t == DType::kF16)
    f(F16Tag{});
  else if (t == DType::kF8)
    f(F8Tag{});
  else
    f(BF16Tag{});
}

#if HWY_TARGET != HWY_SCALAR
/// Adds the upper half of v to its lower half until four lanes remain.
template <class D>
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> fold_to_four(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) > 4) {
    const hn::Half<D> half;
    return fold_to_four(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return v;
  }
}
#endif

/// Writes the lane sums of four vectors to out[0..4). All are summed in the same order, so a sum
/// depends only on its vector.
template <class D>
HWY_INLINE void store_four_sums([[maybe_unused]] D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c,
                                hn::Vec<D> e, float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  out[2] = hn::GetLane(c);
  out[3] = hn::GetLane(e);
#else
  const hn::Repartition<double, D> pairs;
  const auto first = hn::BitCast(
      pairs, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto second = hn::BitCast(
      pairs, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const auto sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, first, second)),
                            hn::BitCast(d, hn::InterleaveUpper(pairs, first, second)));
  hn::StoreU(fold_to_four(d, sums), hn::CappedTag<float, 4>(), out);
#endif
}

/// Returns exp(x) for x <= 88, within 2 ulp. exp(0) is exactly 1, values below -87.3 (also -inf)
/// give 0, and NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> fast_exp(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto lowest = hn::Set(d, -87.33654f);
  const auto n = hn::Round(hn::Mul(hn::Max(x, lowest), hn::Set(d, 1.44269504f)));
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  auto p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
  const auto scale = hn::BitCast(
      d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
  const auto y = hn::Mul(p, scale);
  return hn::IfThenElse(hn::Lt(x, lowest), hn::Zero(d), y);
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();
#endif
