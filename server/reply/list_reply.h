/// Lists: pages of documents, jobs, queries, requests, chunks and blocks.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <optional>
#include <string_view>

#include "server/reply/reply.h"

namespace quire {

/// ListPage is one page of a list.
struct ListPage {
  boost::json::array data;
  bool has_more = false;
  std::string_view id_member = "id";               ///< member of an item that names it
  std::optional<boost::json::object> counts = {};  ///< of documents, if asked for
};

/// Returns the reply that lists items of a kind. `id` is the kind of an item's id.
Reply<ListPage> list_reply(std::string_view name, const Kind& item, const Kind& id = kind::text());
/// The same of documents, whose page may hold counts.
const Reply<ListPage>& document_list_reply();

/// Returns {"object":"list","data":[...],"first_id","last_id","has_more"}.
boost::json::object list_json(boost::json::array data, bool has_more,
                              std::string_view id_member = "id");

}  // namespace quire
