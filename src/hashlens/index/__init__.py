"""Index: codes in, their nearest neighbours out; which engines can search besides ours (nothing is imported for it)."""

ENGINES = {  # name, which is that of the module in engines/ and of the extra: class, and what `where` is
    "milvus": ("MilvusIndex", "an address such as http://localhost:19530, or a file NAME.db"),
    "pgvector": ("PgvectorIndex", "a connection such as postgresql://localhost/images"),
    "faiss": ("ApproximateIndex", "a folder (approximate search)"),
}
