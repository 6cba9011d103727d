"""Results: codes and labels in, scores, tables, figures and reports out."""
