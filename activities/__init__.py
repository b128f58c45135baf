"""Activities: the steps of workflows that touch the outside world. Each step may be repeated safely."""
