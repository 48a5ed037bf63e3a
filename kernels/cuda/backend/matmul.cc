#include "kernels/cuda/backend/matmul.h"

#include <cublasLt.h>

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/cuda/backend/product_choice.h"
#include "kernels/cuda/hardware_status.h"

namespace quire::cuda {
namespace {

/// Returns the device's last error. Those that a context does not survive are reported again by
/// every later call; asking for free memory is one that a capture allows.
Status last_error() {
  QUIRE_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "multiplying matrices"));
  std::size_t free = 0, total = 0;
  return cuda_status(cudaMemGetInfo(&free, &total), "asking for free memory");
}

Status blas_status(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  const std::string message = std::string(what) + ": " + cublasLtGetStatusName(status);
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return Status::exhausted(message);
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return execution_failed(message, last_error());
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return Status::unimplemented(message);
    default:
      return Status::internal(message);
  }
}

/// A cuBLASLt object that is destroyed by `Destroy`.
template <class T, cublasStatus_t (*Destroy)(T)>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) (void)Destroy(object_);
  }
  T* out() { return &object_; }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// y [rows, n] row-major is y^T [n, rows] column-major = W [n, k] (read as its transpose,
/// column-major [k, n]) times x^T [k, rows].
struct Product {
  Description description;
  Layout weight, x, y;

  static Result<Product> of(const MatmulArgs& a) {
    const cudaDataType_t type = a.dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
    Product p;
    QUIRE_RETURN_IF_ERROR(
        blas_status(cublasLtMatmulDescCreate(p.description.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
                    "describing a product"));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    QUIRE_RETURN_IF_ERROR(
        blas_status(cublasLtMatmulDescSetAttribute(p.description.get(), CUBLASLT_MATMUL_DESC_TRANSA,
                                                   &transposed, sizeof transposed),
                    "describing a product"));
    const auto k = static_cast<std::uint64_t>(a.k), n = static_cast<std::uint64_t>(a.n),
               rows = static_cast<std::uint64_t>(a.rows);
    QUIRE_RETURN_IF_ERROR(blas_status(cublasLtMatrixLayoutCreate(p.weight.out(), type, k, n, a.k),
                                      "describing weights"));
    QUIRE_RETURN_IF_ERROR(blas_status(cublasLtMatrixLayoutCreate(p.x.out(), type, k, rows, a.k),
                                      "describing inputs"));
    QUIRE_RETURN_IF_ERROR(blas_status(
        cublasLtMatrixLayoutCreate(p.y.out(), CUDA_R_32F, n, rows, a.ldy), "describing outputs"));
    return Result<Product>(std::move(p));
  }
};

}  // namespace

struct Matmul::Impl {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  ProductChoice<cublasLtMatmulAlgo_t> choice;

  ~Impl() {
    if (handle != nullptr) (void)cublasLtDestroy(handle);
  }

  Result<cublasLtMatmulAlgo_t> ask(const MatmulArgs& args, const Product& p) const {
    Preference preference;
    QUIRE_RETURN_IF_ERROR(
        blas_status(cublasLtMatmulPreferenceCreate(preference.out()), "choosing an algorithm"));
    const auto bytes = static_cast<std::size_t>(kWorkspaceBytes);
    QUIRE_RETURN_IF_ERROR(blas_status(
        cublasLtMatmulPreferenceSetAttribute(
            preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
        "choosing an algorithm"));
    const auto alignment = static_cast<std::uint32_t>(kAlignment);
    for (const auto operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      QUIRE_RETURN_IF_ERROR(
          blas_status(cublasLtMatmulPreferenceSetAttribute(preference.get(), operand, &alignment,
                                                           sizeof alignment),
                      "choosing an algorithm"));
    }
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, p.description.get(), p.weight.get(), p.x.get(), p.y.get(), p.y.get(),
        preference.get(), 1, &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS && count > 0) return found.algo;
    return Status::unimplemented("cuBLASLt has no algorithm for a product of " +
                                 std::to_string(args.rows) + " rows, " + std::to_string(args.n) +
                                 " outputs and " + std::to_string(args.k) + " inputs");
  }

  Result<cublasLtMatmulAlgo_t> algorithm(const MatmulArgs& args, const Product& p) {
    using Shape = ProductChoice<cublasLtMatmulAlgo_t>::Shape;
    const auto of_shape = [&](const Shape& shape) -> Result<cublasLtMatmulAlgo_t> {
      MatmulArgs other = args;
      other.rows = shape.rows;
      other.n = shape.n;
      other.ldy = shape.ldy;
      QUIRE_ASSIGN_OR_RETURN(const Product whole, Product::of(other));
      return ask(other, whole);
    };
    const auto takes = [&](const cublasLtMatmulAlgo_t& algorithm) {
      cublasLtMatmulHeuristicResult_t checked{};
      return cublasLtMatmulAlgoCheck(handle, p.description.get(), p.weight.get(), p.x.get(),
                                     p.y.get(), p.y.get(), &algorithm,
                                     &checked) == CUBLAS_STATUS_SUCCESS &&
             checked.workspaceSize <= static_cast<std::size_t>(kWorkspaceBytes);
    };
    return choice.find({static_cast<int>(args.dtype), args.rows, args.n, args.k, args.ldy,
                        args.whole_n, args.whole_ldy},
                       of_shape, takes);
  }
};

Matmul::Matmul(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Matmul::~Matmul() = default;

Result<std::unique_ptr<Matmul>> Matmul::create(void* workspace) {
  auto impl = std::make_unique<Impl>();
  impl->workspace = workspace;
  QUIRE_RETURN_IF_ERROR(blas_status(cublasLtCreate(&impl->handle), "opening cuBLASLt"));
  return std::unique_ptr<Matmul>(new Matmul(std::move(impl)));
}

Status Matmul::run(const MatmulArgs& args, StreamHandle stream) {
  if (args.dtype != DType::kF32 && args.dtype != DType::kBF16)
    return Status::invalid("dtype", "products take f32 or bf16");
  if (args.rows < 0 || args.n <= 0 || args.k <= 0 || args.ldy < args.n)
    return Status::invalid("ldy", "must be at least n, and n and k at least 1");
  if (args.whole_n != 0 && (args.whole_n < args.n || args.whole_ldy < args.whole_n))
    return Status::invalid("whole_n", "must be at least n, and whole_ldy at least whole_n");
  if (args.rows == 0) return {};
  QUIRE_ASSIGN_OR_RETURN(const Product p, Product::of(args));
  QUIRE_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algorithm, impl_->algorithm(args, p));
  const float one = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  return blas_status(
      cublasLtMatmul(impl_->handle, p.description.get(), &one, args.weight, p.weight.get(), args.x,
                     p.x.get(), &beta, args.y, p.y.get(), args.y, p.y.get(), &algorithm,
                     impl_->workspace, static_cast<std::size_t>(kWorkspaceBytes),
                     static_cast<cudaStream_t>(stream.stream)),
      "multiplying matrices");
}

}  // namespace quire::cuda
