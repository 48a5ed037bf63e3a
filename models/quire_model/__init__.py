"""Training code of Quire's embedded question-answering model."""
