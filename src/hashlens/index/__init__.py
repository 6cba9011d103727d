"""Index: codes in, their nearest neighbours out; and the table of other engines, none of which is imported for it."""

ENGINES = {  # name, also of the module in engines/ and of the extra: class, and what `where` is
    "milvus": ("MilvusIndex", "an address such as http://localhost:19530, or a file NAME.db"),
    "pgvector": ("PgvectorIndex", "a connection such as postgresql://localhost/images"),
    "faiss": ("ApproximateIndex", "a folder (approximate search)"),
}
SERVERS = ("milvus", "pgvector")  # engines that also hold paths and labels, and so need no index folder
TRIED, NEAREST = 100, 10  # queries and results for measuring the recall of an approximate index
