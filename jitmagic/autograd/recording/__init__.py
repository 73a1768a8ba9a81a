"""Records a program as a functional ATen graph: mutation and views are taken out while it runs."""
