# The meaning of every operation in plain loops, and nothing but the standard library.
add_library(quire_kernels_reference STATIC
  ${CMAKE_CURRENT_LIST_DIR}/rows/reference/activation.cc
  ${CMAKE_CURRENT_LIST_DIR}/attention/reference/attention.cc
  ${CMAKE_CURRENT_LIST_DIR}/attention/reference/attention_mass.cc
  ${CMAKE_CURRENT_LIST_DIR}/attention/reference/attention_rows.cc
  ${CMAKE_CURRENT_LIST_DIR}/attention/reference/attention_scores.cc
  ${CMAKE_CURRENT_LIST_DIR}/attention/reference/attention_stats.cc
  ${CMAKE_CURRENT_LIST_DIR}/attention/reference/attention_vslash.cc
  ${CMAKE_CURRENT_LIST_DIR}/rows/reference/block_summary.cc
  ${CMAKE_CURRENT_LIST_DIR}/choice/reference/candidates.cc
  ${CMAKE_CURRENT_LIST_DIR}/choice/reference/key_codes.cc
  ${CMAKE_CURRENT_LIST_DIR}/rows/reference/kv.cc
  ${CMAKE_CURRENT_LIST_DIR}/rows/reference/kv_gather.cc
  ${CMAKE_CURRENT_LIST_DIR}/matmul/reference/matmul.cc
  ${CMAKE_CURRENT_LIST_DIR}/rows/reference/norm.cc
  ${CMAKE_CURRENT_LIST_DIR}/choice/reference/page_bounds.cc
  ${CMAKE_CURRENT_LIST_DIR}/rows/reference/rope.cc
  ${CMAKE_CURRENT_LIST_DIR}/choice/reference/row_products.cc
  ${CMAKE_CURRENT_LIST_DIR}/choice/reference/row_votes.cc
  ${CMAKE_CURRENT_LIST_DIR}/choice/reference/topk.cc
  ${CMAKE_CURRENT_LIST_DIR}/choice/reference/transposed_rows.cc
  ${CMAKE_CURRENT_LIST_DIR}/choice/reference/voted_lists.cc)
add_library(quire::kernels_reference ALIAS quire_kernels_reference)
target_link_libraries(quire_kernels_reference PUBLIC quire::base PRIVATE quire::warnings)
